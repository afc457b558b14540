/* The IRPs that event handlers return: each completes once, whatever ends its connection or closes its files
 * (TDI-CONN-06, TDI-RECV-14, TDI-CLOSE-01, TDI-CLOSE-02, TDI-DISC-07). */
#include "client.h"

/* A server, and what its handlers return. */
typedef struct _SERVER {
  OPENED Address, Connection;
  KEVENT Connecting, Accepted, Posted, Received;
  NTSTATUS Accept, Receive;
  ULONG_PTR Information;
  ULONG Accepts, Receives;
  TDI_CONNECTION_INFORMATION Peer; /* of the accept */
  TA_IP_ADDRESS PeerAddress;
  UCHAR Data[100];
  PMDL Mdl;
  BOOLEAN Slow;                /* the connect handler takes its time */
  BOOLEAN NoFile;              /* the accept has no file object */
  BOOLEAN NoAccept;            /* the accept is another request */
  BOOLEAN NoNext;              /* IoSetNextIrpStackLocation is not called on the receive */
  KEVENT Disconnected;
  ULONG ReceivesBefore;        /* the disconnect event */
  POPENED ReceiveOn;           /* the connection of the receive */
} SERVER, *PSERVER;

static SERVER Server;

static void Await(PKEVENT Event) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

static NTSTATUS NTAPI AcceptDone(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PSERVER server = (PSERVER)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  server->Accept = Irp->IoStatus.Status;
  server->Accepts++;
  IoFreeIrp(Irp);
  KeSetEvent(&server->Accepted, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI OnConnect(PVOID TdiEventContext, LONG RemoteAddressLength, PVOID RemoteAddress,
                                LONG UserDataLength, PVOID UserData, LONG OptionsLength, PVOID Options,
                                CONNECTION_CONTEXT *ConnectionContext, PIRP *AcceptIrp) {
  PSERVER server = (PSERVER)TdiEventContext;
  PIRP irp = IoAllocateIrp(server->Connection.Device->StackSize, FALSE);
  LARGE_INTEGER until, now;
  UNREFERENCED_PARAMETER(RemoteAddressLength);
  UNREFERENCED_PARAMETER(RemoteAddress);
  UNREFERENCED_PARAMETER(UserDataLength);
  UNREFERENCED_PARAMETER(UserData);
  UNREFERENCED_PARAMETER(OptionsLength);
  UNREFERENCED_PARAMETER(Options);
  memset(&server->Peer, 0, sizeof server->Peer);
  server->Peer.UserDataLength = 77;
  server->Peer.RemoteAddress = &server->PeerAddress;
  server->Peer.RemoteAddressLength = sizeof server->PeerAddress;
  TdiBuildAccept(irp, server->Connection.Device, server->Connection.File, AcceptDone, server, NULL, &server->Peer);
  if (server->NoFile)
    IoGetNextIrpStackLocation(irp)->FileObject = NULL;
  if (server->NoAccept)
    IoGetNextIrpStackLocation(irp)->MinorFunction = TDI_RECEIVE;
  IoSetNextIrpStackLocation(irp);
  KeSetEvent(&server->Connecting, 0, FALSE);
  if (server->Slow) {
    KeQuerySystemTime(&until);
    until.QuadPart += 1000000;
    do
      KeQuerySystemTime(&now);
    while (now.QuadPart < until.QuadPart);
  }
  *AcceptIrp = irp;
  *ConnectionContext = server;
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI ReceiveDone(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PSERVER server = (PSERVER)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  server->Receive = Irp->IoStatus.Status;
  server->Information = Irp->IoStatus.Information;
  server->Receives++;
  IoFreeMdl(Irp->MdlAddress);
  IoFreeIrp(Irp);
  KeSetEvent(&server->Received, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

/* Takes what is indicated, and returns a receive for what follows. */
static NTSTATUS NTAPI OnReceive(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PSERVER server = (PSERVER)TdiEventContext;
  PIRP irp = IoAllocateIrp(server->Connection.Device->StackSize, FALSE);
  PMDL mdl = IoAllocateMdl(server->Data, sizeof server->Data, FALSE, FALSE, NULL);
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(ReceiveFlags);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(Tsdu);
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildReceive(irp, server->ReceiveOn->Device, server->ReceiveOn->File, ReceiveDone, server, mdl, 0,
                  sizeof server->Data);
  if (!server->NoNext)
    IoSetNextIrpStackLocation(irp);
  *BytesTaken = BytesIndicated;
  *IoRequestPacket = irp;
  KeSetEvent(&server->Posted, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI OnDisconnect(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext,
                                   LONG DisconnectDataLength, PVOID DisconnectData, LONG DisconnectInformationLength,
                                   PVOID DisconnectInformation, ULONG DisconnectFlags) {
  PSERVER server = (PSERVER)TdiEventContext;
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(DisconnectDataLength);
  UNREFERENCED_PARAMETER(DisconnectData);
  UNREFERENCED_PARAMETER(DisconnectInformationLength);
  UNREFERENCED_PARAMETER(DisconnectInformation);
  UNREFERENCED_PARAMETER(DisconnectFlags);
  server->ReceivesBefore = server->Receives;
  KeSetEvent(&server->Disconnected, 0, FALSE);
  return STATUS_SUCCESS;
}

static void OpenServer(void) {
  memset(&Server, 0, sizeof Server);
  KeInitializeEvent(&Server.Connecting, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Accepted, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Posted, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Received, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Disconnected, SynchronizationEvent, FALSE);
  CHECK_STATUS(OpenAddress(&Server.Address, 0, 0), STATUS_SUCCESS);
  OpenConnection(&Server.Connection, &Server);
  Server.ReceiveOn = &Server.Connection;
  CHECK_STATUS(Associate(&Server.Connection, &Server.Address), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_CONNECT, (PVOID)OnConnect, &Server), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_RECEIVE, (PVOID)OnReceive, &Server), STATUS_SUCCESS);
}

static void OpenClient(POPENED Address, POPENED Client) {
  OpenAnyAddress(Address);
  OpenConnection(Client, NULL);
  CHECK_STATUS(Associate(Client, Address), STATUS_SUCCESS);
}

/* An accept returns the address of the peer. */
static void ReturnedAddress(void) {
  OPENED address, client;
  OpenServer();
  OpenClient(&address, &client);
  CHECK_STATUS(Connect(&client, PortOf(&Server.Address)), STATUS_SUCCESS);
  Await(&Server.Accepted);
  CHECK_STATUS(Server.Accept, STATUS_SUCCESS);
  CHECK(Server.Peer.UserDataLength == 0 && Server.Peer.RemoteAddressLength == sizeof Server.PeerAddress);
  CHECK(Server.PeerAddress.Address[0].AddressType == TDI_ADDRESS_TYPE_IP);
  CHECK(Server.PeerAddress.Address[0].Address[0].in_addr == 0x0100007F);
  CloseFile(&client);
  CloseFile(&address);
  CloseFile(&Server.Connection);
  CloseFile(&Server.Address);
}

/* An IRP that is not an accept of a connection completes with an error, and the peer is refused. */
static void WrongIrps(void) {
  OPENED address, client;
  USHORT port;
  OpenServer();
  port = PortOf(&Server.Address);
  OpenClient(&address, &client);
  Server.NoFile = TRUE;
  CHECK_STATUS(Connect(&client, port), STATUS_REMOTE_NOT_LISTENING);
  Await(&Server.Accepted);
  CHECK_STATUS(Server.Accept, STATUS_INVALID_HANDLE);
  Server.NoFile = FALSE;
  Server.NoAccept = TRUE;
  CHECK_STATUS(Connect(&client, port), STATUS_REMOTE_NOT_LISTENING);
  Await(&Server.Accepted);
  CHECK_STATUS(Server.Accept, STATUS_INVALID_DEVICE_REQUEST);
  Server.NoAccept = FALSE;
  CHECK_STATUS(Connect(&client, port), STATUS_SUCCESS);
  Await(&Server.Accepted);
  CHECK_STATUS(Server.Accept, STATUS_SUCCESS);
  {
    /* A receive of another connection. */
    ULONG taken;
    Server.ReceiveOn = &client;
    CHECK_STATUS(Send(&client, "call", 4, 0, &taken), STATUS_SUCCESS);
    Await(&Server.Received);
    CHECK_STATUS(Server.Receive, STATUS_INVALID_CONNECTION);
  }
  CloseFile(&client);
  CloseFile(&address);
  CloseFile(&Server.Connection);
  CloseFile(&Server.Address);
  CHECK(Server.Accepts == 3 && Server.Receives == 1);
}

/* A receive gets its data after the address was closed. */
static void ClosedAddress(void) {
  OPENED address, client;
  ULONG taken;
  OpenServer();
  OpenClient(&address, &client);
  CHECK_STATUS(Connect(&client, PortOf(&Server.Address)), STATUS_SUCCESS);
  Await(&Server.Accepted);
  CHECK_STATUS(Send(&client, "first", 5, 0, &taken), STATUS_SUCCESS);
  Await(&Server.Posted);
  CloseFile(&Server.Address);
  CHECK_STATUS(Send(&client, "second", 6, 0, &taken), STATUS_SUCCESS);
  Await(&Server.Received);
  CHECK_STATUS(Server.Receive, STATUS_SUCCESS);
  CHECK(Server.Information == 6 && memcmp(Server.Data, "second", 6) == 0);
  CloseFile(&client);
  CloseFile(&address);
  CloseFile(&Server.Connection);
}

/* A receive completes before the disconnect event when the peer disconnects, with and without its own stack location. */
static void EndedConnection(void) {
  OPENED address, client;
  ULONG taken, round;
  OpenServer();
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_DISCONNECT, (PVOID)OnDisconnect, &Server), STATUS_SUCCESS);
  OpenClient(&address, &client);
  for (round = 0; round < 2; round++) {
    Server.NoNext = round == 1;
    CHECK_STATUS(Connect(&client, PortOf(&Server.Address)), STATUS_SUCCESS);
    Await(&Server.Accepted);
    CHECK_STATUS(Send(&client, "call", 4, 0, &taken), STATUS_SUCCESS);
    Await(&Server.Posted);
    CHECK_STATUS(Send(&client, "data", 4, 0, &taken), STATUS_SUCCESS);
    Await(&Server.Received);
    CHECK_STATUS(Server.Receive, STATUS_SUCCESS);
    CHECK(Server.Information == 4 && memcmp(Server.Data, "data", 4) == 0);
    CHECK_STATUS(Send(&client, "call", 4, 0, &taken), STATUS_SUCCESS);
    Await(&Server.Posted);
    CHECK_STATUS(Disconnect(&client, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
    Await(&Server.Received);
    Await(&Server.Disconnected);
    CHECK(!NT_SUCCESS(Server.Receive) && Server.Information == 0);
    CHECK(Server.Receives == 2 * round + 2 && Server.ReceivesBefore == Server.Receives);
  }
  CloseFile(&client);
  CloseFile(&address);
  CloseFile(&Server.Connection);
  CloseFile(&Server.Address);
}

/* An abort cancels the requests of its connection, and not those of the next one. */
static void AbortAndConnect(void) {
  enum { ROUNDS = 50 };
  OPENED address, client;
  USHORT port;
  ULONG round, taken;
  NTSTATUS status;
  OpenServer();
  port = PortOf(&Server.Address);
  OpenClient(&address, &client);
  for (round = 0; round < ROUNDS; round++) {
    /* The accept is refused while the connection is still in use. */
    do {
      status = Connect(&client, port);
      Await(&Server.Accepted);
    } while (!NT_SUCCESS(status));
    CHECK_STATUS(Server.Accept, STATUS_SUCCESS);
    CHECK_STATUS(Send(&client, "call", 4, 0, &taken), STATUS_SUCCESS);
    Await(&Server.Posted);
    CHECK_STATUS(Disconnect(&Server.Connection, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
    Await(&Server.Received);
    /* The abort may come before the transport has the receive from the handler. */
    CHECK(Server.Receive == STATUS_CANCELLED || Server.Receive == STATUS_INVALID_CONNECTION);
    /* The peer may have seen the end already. */
    Disconnect(&client, TDI_DISCONNECT_ABORT);
  }
  CloseFile(&client);
  CloseFile(&address);
  CloseFile(&Server.Connection);
  CloseFile(&Server.Address);
  CHECK(Server.Receives == ROUNDS);
}

/* A close of a connection while the connect handler that returns its accept runs, and while a receive is there. */
static void ClosedConnection(void) {
  OPENED address, client;
  SUBMITTED connect;
  TDI_CONNECTION_INFORMATION information;
  TA_IP_ADDRESS peer;
  ULONG taken;
  PIRP irp;
  USHORT port;
  OpenServer();
  port = PortOf(&Server.Address);
  OpenClient(&address, &client);
  Server.Slow = TRUE;
  irp = NewIrp(&client, &connect);
  LocalAddress(&peer, port);
  memset(&information, 0, sizeof information);
  information.RemoteAddress = &peer;
  information.RemoteAddressLength = sizeof peer;
  TdiBuildConnect(irp, client.Device, client.File, NULL, NULL, NULL, &information, NULL);
  Submit(&client, &connect);
  Await(&Server.Connecting);
  CHECK_STATUS(ZwClose(Server.Connection.Handle), STATUS_SUCCESS);
  /* The close has waited for the completion of the accept. */
  CHECK(KeReadStateEvent(&Server.Accepted) != 0 && Server.Accepts == 1 && !NT_SUCCESS(Server.Accept));
  Await(&Server.Accepted);
  ObDereferenceObject(Server.Connection.File);
  CHECK(!NT_SUCCESS(Finish(&connect)));

  Server.Slow = FALSE;
  OpenConnection(&Server.Connection, &Server);
  CHECK_STATUS(Associate(&Server.Connection, &Server.Address), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&client, port), STATUS_SUCCESS);
  Await(&Server.Accepted);
  CHECK_STATUS(Send(&client, "call", 4, 0, &taken), STATUS_SUCCESS);
  Await(&Server.Posted);
  CloseFile(&Server.Connection);
  CHECK(Server.Receives == 1);
  CHECK(Server.Receive == STATUS_CANCELLED || Server.Receive == STATUS_INVALID_CONNECTION);
  CloseFile(&client);
  CloseFile(&address);
  CloseFile(&Server.Address);
}

int main(int argc, char **argv) {
  SelectDevice(argc, argv);
  ReturnedAddress();
  WrongIrps();
  ClosedAddress();
  EndedConnection();
  AbortAndConnect();
  ClosedConnection();
  printf("returned over %s: each IRP completed once\n", DeviceText);
  return 0;
}
