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

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  ConnectPair(&pair);
  WaitInHandler(&pair);
  ClosePair(&pair);
  printf("callbacks over %s: calls of the transport\n", DeviceText);
  return 0;
}
