/* Sends: what the page of TdiBuildSend says, by its sentences (003.N in specs/tdi.toml). */
#include "client.h"

/* 003.20, 003.21: a connection has to be established. TDI-SEND-01 */
static void NotConnected(void) {
  OPENED address, connection;
  ULONG taken = 7;
  OpenAnyAddress(&address);
  OpenConnection(&connection, NULL);
  CHECK_STATUS(Send(&connection, "early", 5, 0, &taken), STATUS_INVALID_CONNECTION);
  CHECK(taken == 0);
  CHECK_STATUS(Associate(&connection, &address), STATUS_SUCCESS);
  CHECK_STATUS(Send(&connection, "early", 5, 0, &taken), STATUS_INVALID_CONNECTION);
  CHECK(taken == 0);
  CloseFile(&connection);
  CloseFile(&address);
}

/* 003.32, 003.33, 003.65 to 003.69: without flags a whole TSDU, with PARTIAL a part of one. TDI-SEND-02, 08, 09, 28 */
static void WholeAndPartial(PPAIR Pair) {
  ULONG taken;
  CHECK_STATUS(Send(&Pair->Here, "whole", 5, 0, &taken), STATUS_SUCCESS);
  CHECK(taken == 5);
  Expect(&Pair->There, "whole");
  CHECK_STATUS(Send(&Pair->Here, "in ", 3, TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "three ", 6, TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "parts", 5, 0, &taken), STATUS_SUCCESS);
  Expect(&Pair->There, "in three parts");
}

/* The memory of a partial or non-blocking send is the client's again when the send has completed. TDI-SEND-24 */
static void MemoryAfterCompletion(PPAIR Pair) {
  char memory[] = "first ";
  ULONG taken;
  CHECK_STATUS(Send(&Pair->Here, memory, 6, TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
  memcpy(memory, "second", 6);
  CHECK_STATUS(Send(&Pair->Here, memory, 6, TDI_SEND_NON_BLOCKING, &taken), STATUS_SUCCESS);
  memset(memory, 'x', 6);
  Expect(&Pair->There, "first second");
}

/* 003.34, 003.41: flags can be combined, and no response is a hint. TDI-SEND-03, 12 */
static void CombinedFlags(PPAIR Pair) {
  ULONG taken, flags;
  for (flags = 0; flags < 0x200; flags += 0x20) {
    CHECK_STATUS(Send(&Pair->Here, "com", 3, flags, &taken), STATUS_SUCCESS);
    CHECK(taken == 3);
    if ((flags & TDI_SEND_PARTIAL) != 0)
      CHECK_STATUS(Send(&Pair->Here, "", 0, flags & ~(ULONG)TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
    Expect(&Pair->There, "com");
  }
  CHECK_STATUS(Send(&Pair->Here, "undefined", 9, 1, &taken), STATUS_INVALID_PARAMETER);
  CHECK(taken == 0);
  CHECK_STATUS(Send(&Pair->Here, "later", 5, TDI_SEND_AND_DISCONNECT, &taken), STATUS_NOT_SUPPORTED);
  CHECK(taken == 0);
}

/* 003.79 to 003.82: a send of no bytes is refused, or ends the open TSDU. TDI-SEND-29, 30 */
static void NoBytes(PPAIR Pair) {
  ULONG taken = 7;
  SUBMITTED submitted;
  PIRP irp;
  CHECK_STATUS(Send(&Pair->Here, "", 0, 0, &taken), STATUS_INVALID_PARAMETER);
  CHECK(taken == 0);
  CHECK_STATUS(Send(&Pair->Here, "", 0, TDI_SEND_PARTIAL, &taken), STATUS_INVALID_PARAMETER);
  CHECK_STATUS(Send(&Pair->Here, "open", 4, TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "", 0, TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
  CHECK(taken == 0);
  /* Without bytes there need not be an MDL. */
  irp = NewIrp(&Pair->Here, &submitted);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, NULL, 0, 0);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  CHECK(submitted.Status.Information == 0);
  Expect(&Pair->There, "open");
}

/* 003.51, 003.57, 003.58: the largest send can be queried, and a longer one is refused. TDI-SEND-22, 23 */
static void LargestSend(PPAIR Pair) {
  TDI_PROVIDER_INFO info;
  SUBMITTED submitted, receive;
  OPENED control;
  PMDL mdl;
  PIRP irp;
  UCHAR *data, *received;
  ULONG taken;
  CHECK_STATUS(OpenFile(&control, NULL, NULL, 0, 0), STATUS_SUCCESS);
  irp = NewIrp(&control, &submitted);
  mdl = IoAllocateMdl(&info, sizeof info, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildQueryInformation(irp, control.Device, control.File, NULL, NULL, TDI_QUERY_PROVIDER_INFO, mdl);
  CHECK_STATUS(Run(&control, &submitted), STATUS_SUCCESS);
  CHECK(submitted.Status.Information == sizeof info);
  IoFreeMdl(mdl);
  CHECK(info.Version == 0x0200 && info.MaxConnectionUserData == 0 && info.MaxDatagramSize == 0);
  CHECK(info.ServiceFlags == (TDI_SERVICE_CONNECTION_MODE | TDI_SERVICE_ERROR_FREE_DELIVERY |
                              TDI_SERVICE_DELAYED_ACCEPTANCE | TDI_SERVICE_INTERNAL_BUFFERING |
                              TDI_SERVICE_NO_ZERO_LENGTH | TDI_SERVICE_MESSAGE_MODE));
  data = malloc(info.MaxSendSize + 1);
  received = malloc(info.MaxSendSize);
  memset(data, 0x5A, info.MaxSendSize + 1);
  SubmitReceive(&Pair->There, &receive, received, info.MaxSendSize, 0);
  CHECK_STATUS(Send(&Pair->Here, data, info.MaxSendSize + 1, 0, &taken), STATUS_INVALID_PARAMETER);
  CHECK(taken == 0);
  CHECK_STATUS(Send(&Pair->Here, data, info.MaxSendSize, 0, &taken), STATUS_SUCCESS);
  CHECK(taken == info.MaxSendSize);
  CHECK_STATUS(Finish(&receive), STATUS_SUCCESS);
  CHECK(receive.Status.Information == info.MaxSendSize && memcmp(data, received, info.MaxSendSize) == 0);
  free(data);
  free(received);
  CloseFile(&control);
}

/* 003.56, 003.68: a long TSDU in pieces. Each piece completes although nothing leaves before the last, so that a client
 * that waits for each makes progress. What would make the TSDU too long is refused, and the client can end the TSDU. */
static void LongTsduInPieces(PPAIR Pair) {
  static UCHAR piece[0x8000];
  UCHAR *received = malloc(0x800000);
  ULONG round, length, taken, at, count;
  NTSTATUS status;
  for (round = 0; round < 3; round++) {
    length = 0;
    for (;;) {
      memset(piece, (int)(length / sizeof piece + round), sizeof piece);
      status = Send(&Pair->Here, piece, sizeof piece, TDI_SEND_PARTIAL, &taken);
      if (status != STATUS_SUCCESS)
        break;
      CHECK(taken == sizeof piece);
      length += taken;
      CHECK(length < 0x800000);
    }
    CHECK_STATUS(status, STATUS_INVALID_PARAMETER);
    CHECK(taken == 0 && length >= 0x20000);
    CHECK_STATUS(Send(&Pair->Here, "", 0, 0, &taken), STATUS_SUCCESS);
    CHECK_STATUS(Receive(&Pair->There, received, 0x800000, 0, &count), STATUS_SUCCESS);
    CHECK(count == length);
    for (at = 0; at < length; at++)
      CHECK(received[at] == (UCHAR)(at / sizeof piece + round));
  }
  free(received);
}

/* 003.30: an MDL chain is one buffer, whatever its parts and their offsets in a page. TDI-SEND-25 */
static void Chains(PPAIR Pair) {
  ULONG parts;
  for (parts = 1; parts <= 100; parts++) {
    UCHAR data[100 * 100], expected[100 * 100], received[100 * 100];
    PMDL mdls[100];
    SUBMITTED submitted;
    PIRP irp = NewIrp(&Pair->Here, &submitted);
    ULONG part, length = 0, count;
    for (part = 0; part < parts; part++) {
      UCHAR *start = data + part * 100 + part % 7;
      ULONG size = part * 13 % 90;
      memset(start, (int)(part + 1), size);
      memcpy(expected + length, start, size);
      mdls[part] = IoAllocateMdl(start, size, FALSE, FALSE, NULL);
      MmBuildMdlForNonPagedPool(mdls[part]);
      if (part > 0)
        mdls[part - 1]->Next = mdls[part];
      length += size;
    }
    if (length == 0) {
      IoFreeMdl(mdls[0]);
      IoFreeIrp(irp);
      continue;
    }
    TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, mdls[0], 0, length);
    CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
    CHECK(submitted.Status.Information == length);
    CHECK_STATUS(Receive(&Pair->There, received, sizeof received, 0, &count), STATUS_SUCCESS);
    CHECK(count == length && memcmp(received, expected, length) == 0);
    for (part = 0; part < parts; part++)
      IoFreeMdl(mdls[part]);
  }
}

/* A send that is longer than its memory is refused. */
static void ShortMemory(PPAIR Pair) {
  SUBMITTED submitted;
  PIRP irp = NewIrp(&Pair->Here, &submitted);
  PMDL mdl = IoAllocateMdl((PVOID) "four", 4, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, mdl, 0, 5);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_INVALID_PARAMETER);
  CHECK(submitted.Status.Information == 0);
  IoFreeMdl(mdl);
}

static ULONG Possible;
static KEVENT PossibleEvent;

static NTSTATUS NTAPI SendPossible(PVOID Context, PVOID ConnectionContext, ULONG BytesAvailable) {
  CHECK(Context == &Possible && ConnectionContext == (CONNECTION_CONTEXT)2);
  Possible = BytesAvailable;
  KeSetEvent(&PossibleEvent, 0, FALSE);
  return STATUS_SUCCESS;
}

#define BLOCK 60000

/* 003.45 to 003.48, 003.71 to 003.78: the buffer takes all, a part, or nothing, and the client is called when there
 * is room again. TDI-SEND-14 to 18, 21 */
static void NonBlocking(PPAIR Pair) {
  static UCHAR data[BLOCK], received[BLOCK];
  LARGE_INTEGER limit;
  ULONG taken, sent = 0, partly = 0, rest, count, at;
  NTSTATUS status;
  KeInitializeEvent(&PossibleEvent, NotificationEvent, FALSE);
  CHECK_STATUS(SetHandler(&Pair->Client, TDI_EVENT_SEND_POSSIBLE, (PVOID)SendPossible, &Possible), STATUS_SUCCESS);
  /* The peer receives nothing, so that its buffer fills, and then that of this end. */
  do {
    data[0] = (UCHAR)sent;
    rest = BLOCK;
    do {
      /* If only a part was taken, the rest is not queued: the client sends it, which continues the TSDU. */
      status = Send(&Pair->Here, data + BLOCK - rest, rest, TDI_SEND_NON_BLOCKING, &taken);
      if (status == STATUS_SUCCESS) {
        CHECK(taken > 0 && taken <= rest);
        partly += taken < rest;
        rest -= taken;
      }
    } while (status == STATUS_SUCCESS && rest > 0);
    sent += rest == 0;
    CHECK(sent < 10000);
  } while (status == STATUS_SUCCESS);
  CHECK(partly > 0);
  CHECK_STATUS(status, STATUS_DEVICE_NOT_READY);
  CHECK(taken == 0);
  for (at = 0; at < sent; at++) {
    CHECK_STATUS(Receive(&Pair->There, received, BLOCK, 0, &count), STATUS_SUCCESS);
    CHECK(count == BLOCK && received[0] == (UCHAR)at);
  }
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(&PossibleEvent, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
  CHECK(Possible > 0);
  CHECK_STATUS(Send(&Pair->Here, data + BLOCK - rest, rest, TDI_SEND_NON_BLOCKING, &taken), STATUS_SUCCESS);
  CHECK(taken == rest);
  CHECK_STATUS(Receive(&Pair->There, received, BLOCK, 0, &count), STATUS_SUCCESS);
  CHECK(count == BLOCK && received[0] == (UCHAR)sent);
  CHECK_STATUS(SetHandler(&Pair->Client, TDI_EVENT_SEND_POSSIBLE, NULL, NULL), STATUS_SUCCESS);
}

#define MANY 400

/* 003.35, 003.36, 003.61, 003.62: expedited TSDUs overtake those that wait, and each kind keeps its order. A send that
 * waits can be cancelled, and then is not sent. TDI-SEND-04, 05, 07, 20, 34 */
static void Expedited(PPAIR Pair) {
  static UCHAR data[MANY][BLOCK], received[BLOCK];
  static SUBMITTED sends[MANY];
  SUBMITTED expedited[2];
  ULONG at, count, normal = 0, seen = 0, first = 0;
  for (at = 0; at < MANY; at++) {
    memset(data[at], (int)at, BLOCK);
    SubmitSend(&Pair->Here, &sends[at], data[at], BLOCK, 0);
  }
  CHECK(sends[MANY - 1].First == STATUS_PENDING);
  SubmitSend(&Pair->Here, &expedited[0], "now", 3, TDI_SEND_EXPEDITED);
  SubmitSend(&Pair->Here, &expedited[1], "next", 4, TDI_SEND_EXPEDITED);
  CHECK(IoCancelIrp(sends[MANY - 2].Irp));
  CHECK_STATUS(Finish(&sends[MANY - 2]), STATUS_CANCELLED);
  CHECK(sends[MANY - 2].Status.Information == 0);
  for (at = 0; at < MANY + 1; at++) {
    CHECK_STATUS(Receive(&Pair->There, received, BLOCK, 0, &count), STATUS_SUCCESS);
    if (count == BLOCK) {
      if (normal == MANY - 2)
        normal++;
      CHECK(received[0] == (UCHAR)normal && received[BLOCK - 1] == (UCHAR)normal);
      normal++;
    } else {
      CHECK(memcmp(received, seen == 0 ? "now" : "next", count) == 0);
      if (seen == 0)
        first = normal;
      seen++;
    }
  }
  CHECK(seen == 2 && normal == MANY && first < MANY - 2);
  for (at = 0; at < MANY; at++) {
    if (at != MANY - 2)
      CHECK_STATUS(Finish(&sends[at]), STATUS_SUCCESS);
  }
  CHECK_STATUS(Finish(&expedited[0]), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&expedited[1]), STATUS_SUCCESS);
}

/* 003.83 to 003.85: ZwWriteFile sends a whole TSDU. Its offset and key have no effect. TDI-SEND-32, TDI-RECV-09 */
static void Write(PPAIR Pair) {
  IO_STATUS_BLOCK status;
  LARGE_INTEGER offset;
  ULONG key = 5;
  KIRQL irql;
  char buffer[10];
  offset.QuadPart = 12345;
  /* A thread at DISPATCH_LEVEL cannot wait. */
  KeRaiseIrql(DISPATCH_LEVEL, &irql);
  CHECK_STATUS(ZwWriteFile(Pair->Here.Handle, NULL, NULL, NULL, &status, (PVOID) "lost", 4, &offset, &key),
               STATUS_INVALID_DEVICE_STATE);
  CHECK_STATUS(ZwReadFile(Pair->There.Handle, NULL, NULL, NULL, &status, buffer, sizeof buffer, &offset, &key),
               STATUS_INVALID_DEVICE_STATE);
  KeLowerIrql(irql);
  CHECK_STATUS(ZwWriteFile(Pair->Here.Handle, NULL, NULL, NULL, &status, (PVOID) "written", 7, &offset, &key),
               STATUS_SUCCESS);
  CHECK(status.Status == STATUS_SUCCESS && status.Information == 7);
  CHECK_STATUS(ZwReadFile(Pair->There.Handle, NULL, NULL, NULL, &status, buffer, sizeof buffer, &offset, &key),
               STATUS_SUCCESS);
  CHECK(status.Information == 7 && memcmp(buffer, "written", 7) == 0);
}

/* A client can fill the stack location by hand. */
static void ByHand(PPAIR Pair) {
  SUBMITTED submitted;
  PIRP irp = NewIrp(&Pair->Here, &submitted);
  PIO_STACK_LOCATION location = IoGetNextIrpStackLocation(irp);
  PTDI_REQUEST_KERNEL_SEND request = (PTDI_REQUEST_KERNEL_SEND)&location->Parameters;
  PMDL mdl = IoAllocateMdl((PVOID) "by hand", 7, FALSE, FALSE, irp);
  MmBuildMdlForNonPagedPool(mdl);
  location->MajorFunction = IRP_MJ_INTERNAL_DEVICE_CONTROL;
  location->MinorFunction = TDI_SEND;
  location->FileObject = Pair->Here.File;
  request->SendLength = 7;
  request->SendFlags = 0;
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  IoFreeMdl(mdl);
  Expect(&Pair->There, "by hand");
}

/* After a release all earlier sends have arrived, and no more are accepted. TDI-DISC-03 */
static void Release(PPAIR Pair) {
  SUBMITTED sends[20];
  ULONG at, taken;
  for (at = 0; at < 20; at++)
    SubmitSend(&Pair->Here, &sends[at], "released", 8, 0);
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_RELEASE), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "late", 4, 0, &taken), STATUS_INVALID_CONNECTION);
  for (at = 0; at < 20; at++) {
    CHECK_STATUS(Finish(&sends[at]), STATUS_SUCCESS);
    Expect(&Pair->There, "released");
  }
}

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  NotConnected();
  ConnectPair(&pair);
  WholeAndPartial(&pair);
  MemoryAfterCompletion(&pair);
  CombinedFlags(&pair);
  NoBytes(&pair);
  LargestSend(&pair);
  LongTsduInPieces(&pair);
  Chains(&pair);
  ShortMemory(&pair);
  NonBlocking(&pair);
  Expedited(&pair);
  Write(&pair);
  ByHand(&pair);
  Release(&pair);
  ClosePair(&pair);
  printf("sends over %s: as the page of TdiBuildSend says\n", DeviceText);
  return 0;
}
