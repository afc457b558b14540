/* Threads that send, receive, cancel, disconnect and close concurrently. Each request completes once, and when a close has
 * returned, no request of the file is pending and no handler runs. Unlike the other clients it has threads of POSIX. */
#include "client.h"

#include <pthread.h>
#include <time.h>

#define THREADS 4
#define REQUESTS 24

/* What belongs to one connection. It is freed after the close, so that tools find uses after that. */
typedef struct _STATE {
  OPENED Connection;
  LONG Started, Completed, Handled;
} STATE, *PSTATE;

typedef struct _WORK {
  PSTATE State;
  PMDL Mdl;
  UCHAR *Data;
} WORK, *PWORK;

static LONG Total[2];

static NTSTATUS NTAPI Completed(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PWORK work = (PWORK)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  InterlockedIncrement(&Total[NT_SUCCESS(Irp->IoStatus.Status)]);
  IoFreeMdl(work->Mdl);
  free(work->Data);
  IoFreeIrp(Irp);
  InterlockedIncrement(&work->State->Completed);
  free(work);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI OnReceive(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PSTATE state = (PSTATE)ConnectionContext;
  UNREFERENCED_PARAMETER(TdiEventContext);
  UNREFERENCED_PARAMETER(ReceiveFlags);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(Tsdu);
  UNREFERENCED_PARAMETER(IoRequestPacket);
  InterlockedIncrement(&state->Handled);
  *BytesTaken = BytesIndicated;
  return state->Handled % 5 == 0 ? STATUS_DATA_NOT_ACCEPTED : STATUS_SUCCESS;
}

static void Start(PSTATE State, unsigned *Seed) {
  ULONG length = 1 + (ULONG)rand_r(Seed) % 30000, which = (ULONG)rand_r(Seed) % 10;
  PWORK work = malloc(sizeof *work);
  POPENED file = &State->Connection;
  PIRP irp = IoAllocateIrp(file->Device->StackSize, FALSE);
  work->State = State;
  work->Data = calloc(1, length);
  work->Mdl = IoAllocateMdl(work->Data, length, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(work->Mdl);
  InterlockedIncrement(&State->Started);
  if (which < 3)
    TdiBuildReceive(irp, file->Device, file->File, Completed, work, work->Mdl, 0, length)
  else
    TdiBuildSend(irp, file->Device, file->File, Completed, work, work->Mdl, (which % 8) << 5, length)
  IoCallDriver(file->Device, irp);
}

static void *Requests(void *Argument) {
  PSTATE state = (PSTATE)Argument;
  unsigned seed = (unsigned)(ULONG_PTR)Argument ^ (unsigned)pthread_self();
  int count;
  for (count = 0; count < REQUESTS; count++)
    Start(state, &seed);
  if (rand_r(&seed) % 3 == 0)
    Disconnect(&state->Connection, rand_r(&seed) % 2 ? TDI_DISCONNECT_ABORT : TDI_DISCONNECT_RELEASE);
  return NULL;
}

/* A receive that is cancelled while it may complete. The event keeps the IRP's memory until both have happened. */
static NTSTATUS NTAPI Kept(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  UNREFERENCED_PARAMETER(DeviceObject);
  UNREFERENCED_PARAMETER(Irp);
  KeSetEvent((PKEVENT)Context, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static void *Cancels(void *Argument) {
  PSTATE state = (PSTATE)Argument;
  POPENED file = &state->Connection;
  int count;
  for (count = 0; count < REQUESTS; count++) {
    UCHAR data[100];
    KEVENT event;
    PIRP irp = IoAllocateIrp(file->Device->StackSize, FALSE);
    PMDL mdl = IoAllocateMdl(data, sizeof data, FALSE, FALSE, NULL);
    MmBuildMdlForNonPagedPool(mdl);
    KeInitializeEvent(&event, NotificationEvent, FALSE);
    TdiBuildReceive(irp, file->Device, file->File, Kept, &event, mdl, 0, sizeof data)
    IoCallDriver(file->Device, irp);
    IoCancelIrp(irp);
    KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, NULL);
    IoFreeMdl(mdl);
    IoFreeIrp(irp);
  }
  return NULL;
}

static void Round(POPENED Server, POPENED Client, USHORT Port, int Early) {
  PSTATE states[2] = {calloc(1, sizeof(STATE)), calloc(1, sizeof(STATE))};
  pthread_t threads[2][THREADS + 1];
  SUBMITTED listen;
  int end, at;
  for (end = 0; end < 2; end++) {
    OpenConnection(&states[end]->Connection, states[end]);
    CHECK_STATUS(Associate(&states[end]->Connection, end == 0 ? Server : Client), STATUS_SUCCESS);
  }
  SubmitListen(&states[0]->Connection, &listen, 0);
  CHECK_STATUS(Connect(&states[1]->Connection, Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  for (end = 0; end < 2; end++) {
    for (at = 0; at <= THREADS; at++)
      pthread_create(&threads[end][at], NULL, at == THREADS ? Cancels : Requests, states[end]);
  }
  for (end = 0; end < 2; end++) {
    OPENED opened = states[end]->Connection;
    /* With `Early` the close is concurrent with the requests, which then complete with an error. */
    if (Early) {
      struct timespec pause = {0, 1000000L * (rand() % 3)};
      nanosleep(&pause, NULL);
      CHECK_STATUS(ZwClose(opened.Handle), STATUS_SUCCESS);
    }
    for (at = 0; at <= THREADS; at++) {
      /* The cancelling thread waits for its receives, which end with the connection at the latest. */
      pthread_join(threads[end][at], NULL);
    }
    if (!Early)
      CHECK_STATUS(ZwClose(opened.Handle), STATUS_SUCCESS);
    ObDereferenceObject(opened.File);
    CHECK(states[end]->Started == states[end]->Completed);
    free(states[end]);
  }
}

int main(int argc, char **argv) {
  OPENED server, client;
  USHORT port;
  int round;
  SelectDevice(argc, argv);
  CHECK_STATUS(OpenAddress(&server, 0, 0), STATUS_SUCCESS);
  port = PortOf(&server);
  OpenAnyAddress(&client);
  CHECK_STATUS(SetHandler(&server, TDI_EVENT_RECEIVE, (PVOID)OnReceive, NULL), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&client, TDI_EVENT_RECEIVE, (PVOID)OnReceive, NULL), STATUS_SUCCESS);
  for (round = 0; round < 30; round++)
    Round(&server, &client, port, round % 2);
  CloseFile(&client);
  CloseFile(&server);
  CHECK(Total[0] > 0 && Total[1] > 0);
  printf("storm over %s: %d requests succeeded, %d did not\n", DeviceText, (int)Total[1], (int)Total[0]);
  return 0;
}
