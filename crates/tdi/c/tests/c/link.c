/* The failure of a link: the test ends the process of the peer, and this end is told of it
 * (TDI-SEND-26, TDI-RECV-03, TDI-DISC-09). */
#include "client.h"

#define COUNT 300
#define LENGTH 60000

static KEVENT Ended;
static ULONG Disconnects;

static NTSTATUS NTAPI OnDisconnect(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext,
                                   LONG DisconnectDataLength, PVOID DisconnectData, LONG DisconnectInformationLength,
                                   PVOID DisconnectInformation, ULONG DisconnectFlags) {
  UNREFERENCED_PARAMETER(DisconnectDataLength);
  UNREFERENCED_PARAMETER(DisconnectData);
  UNREFERENCED_PARAMETER(DisconnectInformationLength);
  UNREFERENCED_PARAMETER(DisconnectInformation);
  CHECK(TdiEventContext == &Ended && ConnectionContext == (CONNECTION_CONTEXT)7);
  CHECK(DisconnectFlags == TDI_DISCONNECT_ABORT);
  Disconnects++;
  KeSetEvent(&Ended, 0, FALSE);
  return STATUS_SUCCESS;
}

/* The peer accepts a connection, and takes no data. It waits for its end. */
static void Listen(void) {
  OPENED address, connection;
  SUBMITTED listen;
  KEVENT never;
  CHECK_STATUS(OpenAddress(&address, 0, 0), STATUS_SUCCESS);
  OpenConnection(&connection, NULL);
  CHECK_STATUS(Associate(&connection, &address), STATUS_SUCCESS);
  SubmitListen(&connection, &listen, 0);
  printf("%u\n", (unsigned)RtlUshortByteSwap(PortOf(&address)));
  fflush(stdout);
  KeInitializeEvent(&never, NotificationEvent, FALSE);
  KeWaitForSingleObject(&never, Executive, KernelMode, FALSE, NULL);
}

static void ConnectTo(USHORT Port) {
  static SUBMITTED sends[COUNT];
  static UCHAR data[LENGTH], buffer[10];
  OPENED address, connection;
  SUBMITTED receive;
  LARGE_INTEGER limit;
  ULONG at, failed = 0, taken;
  NTSTATUS status;
  KeInitializeEvent(&Ended, SynchronizationEvent, FALSE);
  OpenAnyAddress(&address);
  CHECK_STATUS(SetHandler(&address, TDI_EVENT_DISCONNECT, (PVOID)OnDisconnect, &Ended), STATUS_SUCCESS);
  OpenConnection(&connection, (CONNECTION_CONTEXT)7);
  CHECK_STATUS(Associate(&connection, &address), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&connection, RtlUshortByteSwap(Port)), STATUS_SUCCESS);
  SubmitReceive(&connection, &receive, buffer, sizeof buffer, 0);
  for (at = 0; at < COUNT; at++)
    SubmitSend(&connection, &sends[at], data, LENGTH, 0);
  CHECK(sends[COUNT - 1].First == STATUS_PENDING && receive.First == STATUS_PENDING);
  printf("connected\n");
  fflush(stdout);
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(&Ended, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
  /* Every request has completed once, with a status that says that the connection has ended. */
  for (at = 0; at < COUNT; at++) {
    status = Finish(&sends[at]);
    CHECK(status == STATUS_SUCCESS || status == STATUS_LINK_FAILED || status == STATUS_REMOTE_DISCONNECT);
    failed += status != STATUS_SUCCESS;
  }
  CHECK(failed > 0);
  status = Finish(&receive);
  CHECK(status == STATUS_LINK_FAILED || status == STATUS_REMOTE_DISCONNECT);
  CHECK(receive.Status.Information == 0);
  CHECK_STATUS(Send(&connection, data, 1, 0, &taken), STATUS_INVALID_CONNECTION);
  CHECK(Disconnects == 1);
  CloseFile(&connection);
  CloseFile(&address);
  printf("the link has failed: 0x%08X\n", (unsigned)status);
}

int main(int argc, char **argv) {
  char iwarp[] = "iwarp", *device[] = {argv[0], iwarp};
  SelectDevice(2, device);
  if (argc > 1)
    ConnectTo((USHORT)atoi(argv[1]));
  else
    Listen();
  return 0;
}
