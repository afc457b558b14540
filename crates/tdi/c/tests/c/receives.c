/* Received data: the order of receives, and which handler gets what (TDI-RECV-06, 08, TDI-CHN-03, 04, TDI-ADDR-02,
 * TDI-DISC-08). */
#include "client.h"

#define LENGTH 60000
/* As many bytes as this are more than the transport lends, and fewer than it holds. */
#define MANY 50

typedef struct _SEEN {
  KEVENT Event;
  ULONG Copied, Chained; /* whole TSDUs */
  PVOID Descriptors[MANY];
} SEEN, *PSEEN;

static NTSTATUS NTAPI OnReceive(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PSEEN seen = (PSEEN)TdiEventContext;
  CHECK(ConnectionContext == (CONNECTION_CONTEXT)1 && Tsdu != NULL && IoRequestPacket != NULL);
  CHECK(BytesIndicated <= BytesAvailable);
  *BytesTaken = BytesIndicated;
  if ((ReceiveFlags & TDI_RECEIVE_ENTIRE_MESSAGE) != 0) {
    seen->Copied++;
    KeSetEvent(&seen->Event, 0, FALSE);
  }
  return STATUS_SUCCESS;
}

static NTSTATUS NTAPI OnChained(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG ReceiveLength, ULONG StartingOffset, PMDL Tsdu, PVOID TsduDescriptor) {
  PSEEN seen = (PSEEN)TdiEventContext;
  CHECK(ConnectionContext == (CONNECTION_CONTEXT)1 && ReceiveLength > 0 && StartingOffset == 0 && Tsdu != NULL);
  CHECK((ReceiveFlags & TDI_RECEIVE_ENTIRE_MESSAGE) != 0 && seen->Chained < MANY);
  seen->Descriptors[seen->Chained++] = TsduDescriptor;
  KeSetEvent(&seen->Event, 0, FALSE);
  return STATUS_PENDING;
}

static void Await(PSEEN Seen) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(&Seen->Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

/* Receives complete in the order of their submission, and while one is pending nothing is indicated. */
static void InOrder(PPAIR Pair, PSEEN Seen) {
  static const char *words[] = {"first", "second", "third"};
  char buffers[3][10];
  SUBMITTED receives[3];
  ULONG at, taken;
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, (PVOID)OnReceive, Seen), STATUS_SUCCESS);
  for (at = 0; at < 3; at++)
    SubmitReceive(&Pair->There, &receives[at], buffers[at], sizeof buffers[at], 0);
  for (at = 0; at < 3; at++)
    CHECK_STATUS(Send(&Pair->Here, words[at], (ULONG)strlen(words[at]), 0, &taken), STATUS_SUCCESS);
  for (at = 0; at < 3; at++) {
    CHECK_STATUS(Finish(&receives[at]), STATUS_SUCCESS);
    CHECK(receives[at].Status.Information == strlen(words[at]));
    CHECK(memcmp(buffers[at], words[at], strlen(words[at])) == 0);
  }
  CHECK(Seen->Copied == 0);
  CHECK_STATUS(Send(&Pair->Here, "fourth", 6, 0, &taken), STATUS_SUCCESS);
  Await(Seen);
  CHECK(Seen->Copied == 1);
  Seen->Copied = 0;
}

/* Each TSDU goes to one of the two handlers: to the copying one when no more can be lent. */
static void LentAndCopied(PPAIR Pair, PSEEN Seen) {
  static UCHAR data[LENGTH];
  ULONG at, taken;
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_CHAINED_RECEIVE, (PVOID)OnChained, Seen), STATUS_SUCCESS);
  for (at = 0; at < MANY; at++) {
    CHECK_STATUS(Send(&Pair->Here, data, LENGTH, 0, &taken), STATUS_SUCCESS);
    Await(Seen);
    CHECK(Seen->Chained + Seen->Copied == at + 1);
  }
  CHECK(Seen->Chained > 0 && Seen->Copied > 0);
  TdiReturnChainedReceives(Seen->Descriptors, Seen->Chained);
  Seen->Chained = Seen->Copied = 0;
  CHECK_STATUS(Send(&Pair->Here, data, LENGTH, 0, &taken), STATUS_SUCCESS);
  Await(Seen);
  CHECK(Seen->Chained == 1 && Seen->Copied == 0);
  TdiReturnChainedReceives(Seen->Descriptors, 1);
  Seen->Chained = 0;
}

/* Without handlers data is held, until there is a handler again. */
static void Held(PPAIR Pair, PSEEN Seen) {
  ULONG taken;
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_CHAINED_RECEIVE, NULL, NULL), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, NULL, NULL), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "received", 8, 0, &taken), STATUS_SUCCESS);
  Expect(&Pair->There, "received");
  CHECK_STATUS(Send(&Pair->Here, "indicated", 9, 0, &taken), STATUS_SUCCESS);
  CHECK(Seen->Copied == 0);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, (PVOID)OnReceive, Seen), STATUS_SUCCESS);
  Await(Seen);
  CHECK(Seen->Copied == 1);
}

static NTSTATUS NTAPI OnRefused(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PSEEN seen = (PSEEN)TdiEventContext;
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(ReceiveFlags);
  UNREFERENCED_PARAMETER(BytesIndicated);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(BytesTaken);
  UNREFERENCED_PARAMETER(Tsdu);
  UNREFERENCED_PARAMETER(IoRequestPacket);
  seen->Copied++;
  KeSetEvent(&seen->Event, 0, FALSE);
  return STATUS_DATA_NOT_ACCEPTED;
}

/* Data that was refused is indicated again to a new receive handler, and not because another handler is set. */
static void Refused(PPAIR Pair, PSEEN Seen) {
  static const LONG others[] = {TDI_EVENT_CONNECT, TDI_EVENT_DISCONNECT, TDI_EVENT_ERROR, TDI_EVENT_SEND_POSSIBLE,
                                TDI_EVENT_RECEIVE_EXPEDITED, TDI_EVENT_ERROR_EX, TDI_EVENT_CHAINED_RECEIVE};
  ULONG taken, at;
  Seen->Copied = 0;
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, (PVOID)OnRefused, Seen), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "refused", 7, 0, &taken), STATUS_SUCCESS);
  Await(Seen);
  CHECK(Seen->Copied == 1);
  /* A handler is set when all calls that came before have returned, so a second indication would have been counted. */
  for (at = 0; at < sizeof others / sizeof *others; at++)
    CHECK_STATUS(SetHandler(&Pair->Server, others[at], NULL, NULL), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_ERROR, (PVOID)TdiDefaultErrorHandler, NULL), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, NULL, NULL), STATUS_SUCCESS);
  CHECK(Seen->Copied == 1);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, (PVOID)OnReceive, Seen), STATUS_SUCCESS);
  Await(Seen);
  CHECK(Seen->Copied == 2);
  Seen->Copied = 0;
}

/* After a disconnect has completed nothing is indicated. */
static void AfterDisconnect(PPAIR Pair, PSEEN Seen) {
  SUBMITTED sends[MANY];
  LARGE_INTEGER interval;
  ULONG at, copied;
  for (at = 0; at < MANY; at++)
    SubmitSend(&Pair->Here, &sends[at], "too late", 8, 0);
  CHECK_STATUS(Disconnect(&Pair->There, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
  copied = Seen->Copied;
  interval.QuadPart = -100 * 10000;
  KeDelayExecutionThread(KernelMode, FALSE, &interval);
  CHECK(Seen->Copied == copied);
  for (at = 0; at < MANY; at++)
    Finish(&sends[at]);
}

int main(int argc, char **argv) {
  static SEEN seen;
  PAIR pair;
  SelectDevice(argc, argv);
  KeInitializeEvent(&seen.Event, SynchronizationEvent, FALSE);
  ConnectPair(&pair);
  InOrder(&pair, &seen);
  LentAndCopied(&pair, &seen);
  Held(&pair, &seen);
  Refused(&pair, &seen);
  AfterDisconnect(&pair, &seen);
  ClosePair(&pair);
  printf("receives over %s: in order, each TSDU to one handler\n", DeviceText);
  return 0;
}
