/* Listens: their order and their peers, and a release that takes too long (TDI-CONN-04, 05, 07, TDI-ADDR-02,
 * TDI-DISC-05). */
#include "client.h"

#define BLOCK 60000
#define MANY 400

static void SubmitListenFor(POPENED Connection, PSUBMITTED Submitted, ULONG Address) {
  static TA_IP_ADDRESS address;
  static TDI_CONNECTION_INFORMATION information;
  PIRP irp = NewIrp(Connection, Submitted);
  LocalAddress(&address, 0);
  address.Address[0].Address[0].in_addr = Address;
  memset(&information, 0, sizeof information);
  information.RemoteAddress = &address;
  information.RemoteAddressLength = sizeof address;
  TdiBuildListen(irp, Connection->Device, Connection->File, NULL, NULL, 0, &information, NULL);
  Submit(Connection, Submitted);
}

static NTSTATUS Accept(POPENED Connection) {
  SUBMITTED submitted;
  PIRP irp = NewIrp(Connection, &submitted);
  TdiBuildAccept(irp, Connection->Device, Connection->File, NULL, NULL, NULL, NULL);
  return Run(Connection, &submitted);
}

/* Without a handler and without a listen, a peer is refused. Listens are served in order, and only for their peers. */
static void InOrder(void) {
  OPENED server, client, strangers, there[2], here[3];
  SUBMITTED listens[3];
  USHORT port;
  ULONG at, taken;
  CHECK_STATUS(OpenAddress(&server, 0, 0), STATUS_SUCCESS);
  port = PortOf(&server);
  OpenAnyAddress(&client);
  for (at = 0; at < 3; at++) {
    OpenConnection(&here[at], NULL);
    CHECK_STATUS(Associate(&here[at], &client), STATUS_SUCCESS);
  }
  CHECK_STATUS(Connect(&here[0], port), STATUS_REMOTE_NOT_LISTENING);
  OpenConnection(&strangers, NULL);
  CHECK_STATUS(Associate(&strangers, &server), STATUS_SUCCESS);
  SubmitListenFor(&strangers, &listens[2], 0x010200C0); /* 192.0.2.1 */
  for (at = 0; at < 2; at++) {
    OpenConnection(&there[at], NULL);
    CHECK_STATUS(Associate(&there[at], &server), STATUS_SUCCESS);
    SubmitListenFor(&there[at], &listens[at], at == 0 ? 0x0100007F : 0);
  }
  for (at = 0; at < 2; at++) {
    CHECK_STATUS(Connect(&here[at], port), STATUS_SUCCESS);
    CHECK_STATUS(Finish(&listens[at]), STATUS_SUCCESS);
    CHECK_STATUS(Send(&here[at], at == 0 ? "one" : "two", 3, 0, &taken), STATUS_SUCCESS);
    Expect(&there[at], at == 0 ? "one" : "two");
    /* The listen has accepted already. */
    CHECK(!NT_SUCCESS(Accept(&there[at])));
  }
  CHECK(KeReadStateEvent(&listens[2].Event) == 0);
  CHECK_STATUS(Connect(&here[2], port), STATUS_REMOTE_NOT_LISTENING);
  CHECK(IoCancelIrp(listens[2].Irp));
  CHECK_STATUS(Finish(&listens[2]), STATUS_CANCELLED);
  for (at = 0; at < 3; at++)
    CloseFile(&here[at]);
  for (at = 0; at < 2; at++)
    CloseFile(&there[at]);
  CloseFile(&strangers);
  CloseFile(&client);
  CloseFile(&server);
}

/* A release that exceeds its time-out ends the connection. */
static void LateRelease(PPAIR Pair) {
  static UCHAR data[BLOCK];
  static SUBMITTED sends[MANY];
  SUBMITTED release;
  LARGE_INTEGER limit;
  ULONG at, taken, failed = 0;
  PIRP irp;
  for (at = 0; at < MANY; at++)
    SubmitSend(&Pair->Here, &sends[at], data, BLOCK, 0);
  CHECK(sends[MANY - 1].First == STATUS_PENDING);
  limit.QuadPart = -100 * 10000;
  irp = NewIrp(&Pair->Here, &release);
  TdiBuildDisconnect(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, &limit, TDI_DISCONNECT_RELEASE, NULL, NULL);
  CHECK_STATUS(Run(&Pair->Here, &release), STATUS_IO_TIMEOUT);
  CHECK_STATUS(Send(&Pair->Here, "late", 4, 0, &taken), STATUS_INVALID_CONNECTION);
  for (at = 0; at < MANY; at++)
    failed += Finish(&sends[at]) != STATUS_SUCCESS;
  CHECK(failed > 0);
}

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  InOrder();
  ConnectPair(&pair);
  LateRelease(&pair);
  ClosePair(&pair);
  printf("listens over %s: in order, for their peers\n", DeviceText);
  return 0;
}
