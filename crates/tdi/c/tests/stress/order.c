/* What a client sees of a connection comes in one order, and nothing comes after the end: the routines of receives in the
 * order of their submission, an indication after the routine of the receive that has the data before it, the disconnect
 * event last, no handler and no routine after an abort, a removal of the handler or a close. The rounds are as many as
 * showed each fault when each request completed in a task of its own. Unlike the other clients it has threads of POSIX. */
#include "client.h"

#include <pthread.h>

#define RECEIVES 20000
#define OUTSTANDING 4
#define ROUNDS 200
#define CLOSES 2000
#define BURST 32

/* Counts what the client sees. */
static LONG Clock;

static LONG Now(void) {
  return InterlockedIncrement(&Clock);
}

static void Await(PKEVENT Event) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

/* Waits for a connection to be ready for a listen, which the end of the one before may delay. */
static void Reconnect(PPAIR Pair) {
  SUBMITTED listen;
  LARGE_INTEGER pause;
  NTSTATUS status;
  pause.QuadPart = -10000;
  for (;;) {
    SubmitListen(&Pair->There, &listen, 0);
    if (listen.First == STATUS_PENDING)
      break;
    Finish(&listen);
    KeDelayExecutionThread(KernelMode, FALSE, &pause);
  }
  while ((status = Connect(&Pair->Here, Pair->Port)) == STATUS_CONNECTION_ACTIVE ||
         status == STATUS_INVALID_DEVICE_STATE)
    KeDelayExecutionThread(KernelMode, FALSE, &pause);
  CHECK_STATUS(status, STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
}

/* One receive of many. */
typedef struct _NUMBERED {
  ULONG Data;
  PMDL Mdl;
  PIRP Irp;
} NUMBERED, *PNUMBERED;

static NUMBERED Receives[RECEIVES];
static volatile LONG Completed;

static NTSTATUS NTAPI NumberedDone(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PNUMBERED receive = (PNUMBERED)Context;
  ULONG number = (ULONG)(receive - Receives);
  UNREFERENCED_PARAMETER(DeviceObject);
  CHECK_STATUS(Irp->IoStatus.Status, STATUS_SUCCESS);
  CHECK(receive->Data == number && Completed == (LONG)number);
  IoFreeMdl(receive->Mdl);
  IoFreeIrp(Irp);
  InterlockedIncrement(&Completed);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static void *SendNumbers(void *Argument) {
  PPAIR pair = (PPAIR)Argument;
  ULONG number, taken;
  for (number = 0; number < RECEIVES; number++)
    CHECK_STATUS(Send(&pair->Here, &number, sizeof number, 0, &taken), STATUS_SUCCESS);
  return NULL;
}

/* Receives that find data when they are submitted, and receives that wait for it, complete in one order. */
static void InOrder(PPAIR Pair) {
  pthread_t sender;
  LONG number;
  Completed = 0;
  CHECK(pthread_create(&sender, NULL, SendNumbers, Pair) == 0);
  for (number = 0; number < RECEIVES; number++) {
    PNUMBERED receive = &Receives[number];
    receive->Mdl = IoAllocateMdl(&receive->Data, sizeof receive->Data, FALSE, FALSE, NULL);
    MmBuildMdlForNonPagedPool(receive->Mdl);
    receive->Irp = IoAllocateIrp(Pair->There.Device->StackSize, FALSE);
    TdiBuildReceive(receive->Irp, Pair->There.Device, Pair->There.File, NumberedDone, receive, receive->Mdl,
                    TDI_RECEIVE_NORMAL, sizeof receive->Data);
    IoCallDriver(Pair->There.Device, receive->Irp);
    while (number - Completed >= OUTSTANDING)
      ;
  }
  pthread_join(sender, NULL);
  while (Completed < RECEIVES)
    ;
}

/* A receive and a handler, and when they were called. */
typedef struct _SEEN {
  KEVENT Filled, Called;
  LONG FilledAt, CalledAt;
  char Data[8];
} SEEN, *PSEEN;

static NTSTATUS NTAPI SeenDone(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PSEEN seen = (PSEEN)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  UNREFERENCED_PARAMETER(Irp);
  seen->FilledAt = Now();
  KeSetEvent(&seen->Filled, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI OnReceive(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PSEEN seen = (PSEEN)TdiEventContext;
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(ReceiveFlags);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(IoRequestPacket);
  CHECK(BytesIndicated == 6 && memcmp(Tsdu, "second", 6) == 0);
  seen->CalledAt = Now();
  *BytesTaken = BytesIndicated;
  KeSetEvent(&seen->Called, 0, FALSE);
  return STATUS_SUCCESS;
}

static NTSTATUS NTAPI OnDisconnect(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext,
                                   LONG DisconnectDataLength, PVOID DisconnectData, LONG DisconnectInformationLength,
                                   PVOID DisconnectInformation, ULONG DisconnectFlags) {
  PSEEN seen = (PSEEN)TdiEventContext;
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(DisconnectDataLength);
  UNREFERENCED_PARAMETER(DisconnectData);
  UNREFERENCED_PARAMETER(DisconnectInformationLength);
  UNREFERENCED_PARAMETER(DisconnectInformation);
  UNREFERENCED_PARAMETER(DisconnectFlags);
  seen->CalledAt = Now();
  KeSetEvent(&seen->Called, 0, FALSE);
  return STATUS_SUCCESS;
}

/* The peer sends, and then sends again or releases. The first TSDU fills a receive, whose routine comes first. */
static void RoutineBeforeEvent(PPAIR Pair, BOOLEAN Releases) {
  SEEN seen;
  LONG event = Releases ? TDI_EVENT_DISCONNECT : TDI_EVENT_RECEIVE, round;
  PMDL mdl = IoAllocateMdl(seen.Data, sizeof seen.Data, FALSE, FALSE, NULL);
  PIRP irp = IoAllocateIrp(Pair->There.Device->StackSize, FALSE);
  MmBuildMdlForNonPagedPool(mdl);
  KeInitializeEvent(&seen.Filled, SynchronizationEvent, FALSE);
  KeInitializeEvent(&seen.Called, SynchronizationEvent, FALSE);
  CHECK_STATUS(SetHandler(&Pair->Server, event, Releases ? (PVOID)OnDisconnect : (PVOID)OnReceive, &seen),
               STATUS_SUCCESS);
  for (round = 0; round < ROUNDS; round++) {
    SUBMITTED first, second;
    IoReuseIrp(irp, STATUS_SUCCESS);
    TdiBuildReceive(irp, Pair->There.Device, Pair->There.File, SeenDone, &seen, mdl, TDI_RECEIVE_NORMAL, 8);
    CHECK_STATUS(IoCallDriver(Pair->There.Device, irp), STATUS_PENDING);
    SubmitSend(&Pair->Here, &first, "first", 5, 0);
    if (Releases) {
      CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_RELEASE), STATUS_SUCCESS);
    } else {
      SubmitSend(&Pair->Here, &second, "second", 6, 0);
      CHECK_STATUS(Finish(&second), STATUS_SUCCESS);
    }
    CHECK_STATUS(Finish(&first), STATUS_SUCCESS);
    Await(&seen.Filled);
    Await(&seen.Called);
    CHECK_STATUS(irp->IoStatus.Status, STATUS_SUCCESS);
    CHECK(irp->IoStatus.Information == 5 && memcmp(seen.Data, "first", 5) == 0);
    CHECK(seen.FilledAt < seen.CalledAt);
    if (Releases)
      Reconnect(Pair);
  }
  CHECK_STATUS(SetHandler(&Pair->Server, event, NULL, NULL), STATUS_SUCCESS);
  IoFreeIrp(irp);
  IoFreeMdl(mdl);
}

/* An abort completes after the receives that it cancels. */
static void AbortAfterReceives(PPAIR Pair) {
  int round, at;
  for (round = 0; round < 50; round++) {
    SUBMITTED receives[8];
    char buffers[8][8];
    for (at = 0; at < 8; at++)
      SubmitReceive(&Pair->There, &receives[at], buffers[at], sizeof buffers[at], 0);
    CHECK_STATUS(Disconnect(&Pair->There, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
    for (at = 0; at < 8; at++) {
      CHECK(KeReadStateEvent(&receives[at].Event) != 0);
      CHECK_STATUS(Finish(&receives[at]), STATUS_CANCELLED);
    }
    Disconnect(&Pair->Here, TDI_DISCONNECT_ABORT);
    Reconnect(Pair);
  }
}

static volatile LONG IsOver, Calls;

static NTSTATUS NTAPI OnAny(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                            ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                            PIRP *IoRequestPacket) {
  UNREFERENCED_PARAMETER(TdiEventContext);
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(ReceiveFlags);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(Tsdu);
  UNREFERENCED_PARAMETER(IoRequestPacket);
  CHECK(!IsOver);
  Calls++;
  *BytesTaken = BytesIndicated;
  return STATUS_SUCCESS;
}

typedef enum _ENDING { ByAbort, ByRemoval, ByClose, ByCloseOfAddress, ENDINGS } ENDING;

/* Ends the indications of a connection while data arrives. Nothing is indicated after that. */
static void NothingAfter(ENDING Ending, int Round) {
  PAIR pair;
  SUBMITTED sends[BURST];
  LARGE_INTEGER pause;
  volatile int spin;
  int at;
  IsOver = 0;
  ConnectPair(&pair);
  CHECK_STATUS(SetHandler(&pair.Server, TDI_EVENT_RECEIVE, (PVOID)OnAny, NULL), STATUS_SUCCESS);
  for (at = 0; at < BURST; at++)
    SubmitSend(&pair.Here, &sends[at], "0123456789abcdef", 16, 0);
  /* The end comes at another moment of the burst in each round. */
  for (spin = 0; spin < Round * 9973 % 900000; spin++)
    ;
  switch (Ending) {
  case ByAbort:
    CHECK_STATUS(Disconnect(&pair.There, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
    break;
  case ByRemoval:
    CHECK_STATUS(SetHandler(&pair.Server, TDI_EVENT_RECEIVE, NULL, NULL), STATUS_SUCCESS);
    break;
  case ByClose:
    CHECK_STATUS(ZwClose(pair.There.Handle), STATUS_SUCCESS);
    break;
  default:
    CHECK_STATUS(ZwClose(pair.Server.Handle), STATUS_SUCCESS);
  }
  IsOver = 1;
  /* A handler that is late has this time. */
  pause.QuadPart = -5000;
  KeDelayExecutionThread(KernelMode, FALSE, &pause);
  if (Ending != ByClose)
    CHECK_STATUS(ZwClose(pair.There.Handle), STATUS_SUCCESS);
  if (Ending != ByCloseOfAddress)
    CHECK_STATUS(ZwClose(pair.Server.Handle), STATUS_SUCCESS);
  for (at = 0; at < BURST; at++)
    Finish(&sends[at]);
  CloseFile(&pair.Here);
  CloseFile(&pair.Client);
  ObDereferenceObject(pair.There.File);
  ObDereferenceObject(pair.Server.File);
}

int main(int argc, char **argv) {
  PAIR pair;
  int round;
  SelectDevice(argc, argv);
  ConnectPair(&pair);
  InOrder(&pair);
  RoutineBeforeEvent(&pair, FALSE);
  RoutineBeforeEvent(&pair, TRUE);
  AbortAfterReceives(&pair);
  ClosePair(&pair);
  for (round = 0; round < CLOSES; round++)
    NothingAfter((ENDING)(round % ENDINGS), round);
  CHECK(Calls > 0);
  printf("order over %s: one order, and nothing after the end\n", DeviceText);
  return 0;
}
