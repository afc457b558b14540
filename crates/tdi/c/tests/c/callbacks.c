/* Clients that call the transport from their event handlers and completion routines. */
#include "client.h"

static void Await(PKEVENT Event) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

/* What OnWaiting calls, and what came of it. */
typedef struct _WAITING {
  KEVENT Event;
  HANDLE Handle;
  NTSTATUS Written, Read;
} WAITING, *PWAITING;

static NTSTATUS NTAPI OnWaiting(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PWAITING waiting = (PWAITING)TdiEventContext;
  IO_STATUS_BLOCK status;
  PVOID buffer = malloc(100);
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(ReceiveFlags);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(Tsdu);
  UNREFERENCED_PARAMETER(IoRequestPacket);
  memset(buffer, 'x', 100);
  waiting->Written = ZwWriteFile(waiting->Handle, NULL, NULL, NULL, &status, buffer, 100, NULL, NULL);
  waiting->Read = ZwReadFile(waiting->Handle, NULL, NULL, NULL, &status, buffer, 100, NULL, NULL);
  free(buffer);
  *BytesTaken = BytesIndicated;
  KeSetEvent(&waiting->Event, 0, FALSE);
  return STATUS_SUCCESS;
}

/* A handler cannot wait for a write or a read. It is refused before the transport uses the buffer. */
static void WaitInHandler(PPAIR Pair) {
  WAITING waiting;
  ULONG taken;
  KeInitializeEvent(&waiting.Event, SynchronizationEvent, FALSE);
  waiting.Handle = Pair->There.Handle;
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, (PVOID)OnWaiting, &waiting), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "call", 4, 0, &taken), STATUS_SUCCESS);
  Await(&waiting.Event);
  CHECK_STATUS(waiting.Written, STATUS_INVALID_DEVICE_STATE);
  CHECK_STATUS(waiting.Read, STATUS_INVALID_DEVICE_STATE);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, NULL, NULL), STATUS_SUCCESS);
  /* Neither the write nor the read was submitted. */
  CHECK_STATUS(Send(&Pair->There, "answer", 6, 0, &taken), STATUS_SUCCESS);
  Expect(&Pair->Here, "answer");
  CHECK_STATUS(Send(&Pair->Here, "next", 4, 0, &taken), STATUS_SUCCESS);
  Expect(&Pair->There, "next");
}

#define HELD 30000

/* A receive that its completion routine submits again. */
typedef struct _REPOSTED {
  KEVENT Event;
  POPENED Connection;
  PMDL Mdl;
  ULONG Count;
} REPOSTED, *PREPOSTED;

static NTSTATUS NTAPI Repost(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PREPOSTED reposted = (PREPOSTED)Context;
  PDEVICE_OBJECT device = reposted->Connection->Device;
  UNREFERENCED_PARAMETER(DeviceObject);
  CHECK(Irp->IoStatus.Status == STATUS_SUCCESS && Irp->IoStatus.Information == 1);
  if (++reposted->Count == HELD) {
    IoFreeIrp(Irp);
    KeSetEvent(&reposted->Event, 0, FALSE);
    return STATUS_MORE_PROCESSING_REQUIRED;
  }
  IoReuseIrp(Irp, STATUS_SUCCESS);
  TdiBuildReceive(Irp, device, reposted->Connection->File, Repost, reposted, reposted->Mdl, 0, 1);
  CHECK_STATUS(IoCallDriver(device, Irp), STATUS_PENDING);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static PMDL Memory(PVOID Start, ULONG Length) {
  PMDL mdl = IoAllocateMdl(Start, Length, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  return mdl;
}

/* Returns the number of TSDUs that have arrived at a connection. */
static ULONG Arrived(POPENED Connection) {
  TDI_CONNECTION_INFO info;
  SUBMITTED submitted;
  PIRP irp = NewIrp(Connection, &submitted);
  PMDL mdl = Memory(&info, sizeof info);
  TdiBuildQueryInformation(irp, Connection->Device, Connection->File, NULL, NULL, TDI_QUERY_CONNECTION_INFO, mdl);
  CHECK_STATUS(Run(Connection, &submitted), STATUS_SUCCESS);
  IoFreeMdl(mdl);
  return info.ReceivedTsdus;
}

/* A completion routine that submits the next receive does not run inside itself, however many TSDUs are held. */
static void HeldTsdus(PPAIR Pair) {
  REPOSTED reposted;
  char received;
  PMDL sent = Memory((PVOID) "x", 1);
  ULONG count, before = Arrived(&Pair->There);
  LARGE_INTEGER pause;
  PIRP irp;
  for (count = 0; count < HELD; count++) {
    irp = IoBuildDeviceIoControlRequest(TDI_SEND, Pair->Here.Device, NULL, 0, NULL, 0, TRUE, NULL, NULL);
    TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, sent, 0, 1);
    IoCallDriver(Pair->Here.Device, irp);
  }
  pause.QuadPart = -10000;
  while (Arrived(&Pair->There) - before < HELD)
    KeDelayExecutionThread(KernelMode, FALSE, &pause);
  KeInitializeEvent(&reposted.Event, NotificationEvent, FALSE);
  reposted.Connection = &Pair->There;
  reposted.Mdl = Memory(&received, 1);
  reposted.Count = 0;
  irp = IoAllocateIrp(Pair->There.Device->StackSize, FALSE);
  TdiBuildReceive(irp, Pair->There.Device, Pair->There.File, Repost, &reposted, reposted.Mdl, 0, 1);
  IoCallDriver(Pair->There.Device, irp);
  Await(&reposted.Event);
  IoFreeMdl(reposted.Mdl);
  /* The release completes after the sends, whose memory is the client's then. */
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_RELEASE), STATUS_SUCCESS);
  IoFreeMdl(sent);
}

static KSPIN_LOCK Lock;
static ULONG Locked;

static NTSTATUS NTAPI TakesLock(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  KIRQL irql;
  UNREFERENCED_PARAMETER(DeviceObject);
  UNREFERENCED_PARAMETER(Irp);
  UNREFERENCED_PARAMETER(Context);
  KeAcquireSpinLock(&Lock, &irql);
  Locked++;
  KeReleaseSpinLock(&Lock, irql);
  return STATUS_SUCCESS;
}

/* A routine is never called inside a call of a thread that holds a lock, which the routine may take: neither of a request
 * that is refused, nor of one that is cancelled or closed. */
static void WithLock(PPAIR Pair) {
  SUBMITTED refused, receive, listens[2];
  OPENED others[2];
  char buffer[1];
  PMDL mdl = Memory(buffer, 1);
  KIRQL irql;
  PIRP irp;
  ULONG at;
  KeInitializeSpinLock(&Lock);
  for (at = 0; at < 2; at++) {
    OpenConnection(&others[at], (CONNECTION_CONTEXT)9);
    CHECK_STATUS(Associate(&others[at], &Pair->Server), STATUS_SUCCESS);
    irp = NewIrp(&others[at], &listens[at]);
    TdiBuildListen(irp, others[at].Device, others[at].File, TakesLock, NULL, 0, NULL, NULL);
    Submit(&others[at], &listens[at]);
  }
  KeAcquireSpinLock(&Lock, &irql);
  irp = NewIrp(&Pair->There, &refused);
  TdiBuildSend(irp, Pair->There.Device, Pair->There.File, TakesLock, NULL, mdl, 0, 0);
  Submit(&Pair->There, &refused);
  CHECK(refused.First == STATUS_PENDING);
  irp = NewIrp(&Pair->There, &receive);
  TdiBuildReceive(irp, Pair->There.Device, Pair->There.File, TakesLock, NULL, mdl, 0, 1);
  Submit(&Pair->There, &receive);
  CHECK(IoCancelIrp(receive.Irp));
  CHECK(IoCancelIrp(listens[0].Irp));
  CHECK_STATUS(ZwClose(others[1].Handle), STATUS_SUCCESS);
  KeReleaseSpinLock(&Lock, irql);
  CHECK_STATUS(Finish(&refused), STATUS_INVALID_PARAMETER);
  CHECK_STATUS(Finish(&receive), STATUS_CANCELLED);
  CHECK_STATUS(Finish(&listens[0]), STATUS_CANCELLED);
  CHECK_STATUS(Finish(&listens[1]), STATUS_CANCELLED);
  CHECK(Locked == 4);
  ObDereferenceObject(others[1].File);
  CloseFile(&others[0]);
  IoFreeMdl(mdl);
}

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  ConnectPair(&pair);
  WaitInHandler(&pair);
  WithLock(&pair);
  HeldTsdus(&pair);
  ClosePair(&pair);
  printf("callbacks over %s: calls of the transport\n", DeviceText);
  return 0;
}
