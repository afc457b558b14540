/* A receiver with ClientEventChainedReceive: it reads TSDUs in place, keeps some and returns them later, and does not
 * accept others (TDI-CHN-01 to 06). */
#include "client.h"

#define LENGTH 50000

typedef struct _KEPT {
  KEVENT Event;
  NTSTATUS Answer;
  PVOID Descriptors[8];
  PMDL Mdls[8];
  ULONG Count, Copied;
  UCHAR Data[LENGTH];
} KEPT, *PKEPT;

static NTSTATUS NTAPI OnChained(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG ReceiveLength, ULONG StartingOffset, PMDL Tsdu, PVOID TsduDescriptor) {
  PKEPT kept = (PKEPT)TdiEventContext;
  ULONG copied = 0;
  CHECK(ConnectionContext == (CONNECTION_CONTEXT)1);
  CHECK((ReceiveFlags & TDI_RECEIVE_ENTIRE_MESSAGE) != 0 && (ReceiveFlags & TDI_RECEIVE_NORMAL) != 0);
  CHECK_STATUS(TdiCopyMdlToBuffer(Tsdu, StartingOffset, kept->Data, 0, sizeof kept->Data, &copied), STATUS_SUCCESS);
  CHECK(copied == ReceiveLength);
  kept->Copied = copied;
  if (kept->Answer == STATUS_PENDING) {
    kept->Mdls[kept->Count] = Tsdu;
    kept->Descriptors[kept->Count++] = TsduDescriptor;
  }
  KeSetEvent(&kept->Event, 0, FALSE);
  return kept->Answer;
}

static void Await(PKEPT Kept) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(&Kept->Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

int main(int argc, char **argv) {
  static UCHAR data[LENGTH], copy[LENGTH];
  static KEPT kept;
  PAIR pair;
  ULONG at, taken, copied;
  SelectDevice(argc, argv);
  ConnectPair(&pair);
  for (at = 0; at < LENGTH; at++)
    data[at] = (UCHAR)(at * 3);
  KeInitializeEvent(&kept.Event, SynchronizationEvent, FALSE);
  kept.Answer = STATUS_SUCCESS;
  CHECK_STATUS(SetHandler(&pair.Server, TDI_EVENT_CHAINED_RECEIVE, (PVOID)OnChained, &kept), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&pair.Server, TDI_EVENT_CHAINED_RECEIVE_EXPEDITED, (PVOID)OnChained, &kept), STATUS_SUCCESS);
  CHECK_STATUS(Send(&pair.Here, data, LENGTH, 0, &taken), STATUS_SUCCESS);
  Await(&kept);
  CHECK(kept.Copied == LENGTH && memcmp(kept.Data, data, LENGTH) == 0);
  /* TSDUs that are kept stay as they are while others arrive. */
  kept.Answer = STATUS_PENDING;
  for (at = 0; at < 8; at++) {
    data[0] = (UCHAR)at;
    CHECK_STATUS(Send(&pair.Here, data, LENGTH - at, 0, &taken), STATUS_SUCCESS);
    Await(&kept);
    CHECK(kept.Copied == LENGTH - at);
  }
  for (at = 0; at < 8; at++) {
    data[0] = (UCHAR)at;
    CHECK_STATUS(TdiCopyMdlToBuffer(kept.Mdls[at], 0, copy, 0, LENGTH, &copied), STATUS_SUCCESS);
    CHECK(copied == LENGTH - at && memcmp(copy, data, copied) == 0);
  }
  TdiReturnChainedReceives(kept.Descriptors, 3);
  TdiReturnChainedReceives(kept.Descriptors + 3, 5);
  /* What is not accepted waits for a receive. */
  kept.Answer = STATUS_DATA_NOT_ACCEPTED;
  CHECK_STATUS(Send(&pair.Here, "not now", 7, 0, &taken), STATUS_SUCCESS);
  Await(&kept);
  Expect(&pair.There, "not now");
  /* A TSDU can outlive its connection. */
  kept.Answer = STATUS_PENDING;
  kept.Count = 0;
  CHECK_STATUS(Send(&pair.Here, data, LENGTH, 0, &taken), STATUS_SUCCESS);
  Await(&kept);
  ClosePair(&pair);
  CHECK_STATUS(TdiCopyMdlToBuffer(kept.Mdls[0], 10, copy, 10, LENGTH, &copied), STATUS_SUCCESS);
  CHECK(copied == LENGTH - 10 && memcmp(copy + 10, data + 10, copied) == 0);
  TdiReturnChainedReceives(kept.Descriptors, 1);
  printf("chained receives over %s: in place, kept, not accepted\n", DeviceText);
  return 0;
}
