/* A server that has event handlers only: it accepts by ClientEventConnect, takes data by ClientEventReceive, and is told
 * of the end by ClientEventDisconnect (003.64 to 003.70 of specs/tdi.toml; TDI-RECV-08 to 14, TDI-CONN-06, TDI-DISC-09). */
#include "client.h"

#define PART 70000

typedef struct _SERVER {
  OPENED Address, Connection;
  KEVENT Accepted, Received, Disconnected, Stopped;
  NTSTATUS Accept;
  ULONG Refused, Length, Indications, Posted;
  BOOLEAN Ended; /* the last indication had TDI_RECEIVE_ENTIRE_MESSAGE */
  BOOLEAN Post;  /* return a receive for the rest */
  BOOLEAN Stop;  /* do not accept data */
  UCHAR Data[2 * PART];
  UCHAR Rest[2 * PART];
  PMDL Mdl;
} SERVER, *PSERVER;

static SERVER Server;

static NTSTATUS NTAPI AcceptDone(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PSERVER server = (PSERVER)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  server->Accept = Irp->IoStatus.Status;
  IoFreeIrp(Irp);
  KeSetEvent(&server->Accepted, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI OnConnect(PVOID TdiEventContext, LONG RemoteAddressLength, PVOID RemoteAddress,
                                LONG UserDataLength, PVOID UserData, LONG OptionsLength, PVOID Options,
                                CONNECTION_CONTEXT *ConnectionContext, PIRP *AcceptIrp) {
  PSERVER server = (PSERVER)TdiEventContext;
  PTA_IP_ADDRESS peer = (PTA_IP_ADDRESS)RemoteAddress;
  PIRP irp;
  CHECK(RemoteAddressLength == sizeof *peer && peer->Address[0].AddressType == TDI_ADDRESS_TYPE_IP);
  CHECK(UserDataLength == 0 && UserData == NULL && OptionsLength == 0 && Options == NULL);
  CHECK(KeGetCurrentIrql() == DISPATCH_LEVEL);
  if (server->Refused == 0) {
    server->Refused = 1;
    return STATUS_CONNECTION_REFUSED;
  }
  irp = IoAllocateIrp(server->Connection.Device->StackSize, FALSE);
  TdiBuildAccept(irp, server->Connection.Device, server->Connection.File, AcceptDone, server, NULL, NULL);
  IoSetNextIrpStackLocation(irp);
  *AcceptIrp = irp;
  *ConnectionContext = server;
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI RestDone(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PSERVER server = (PSERVER)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  CHECK(Irp->IoStatus.Status == STATUS_SUCCESS);
  memcpy(server->Data + server->Length, server->Rest, Irp->IoStatus.Information);
  server->Length += (ULONG)Irp->IoStatus.Information;
  server->Posted++;
  server->Ended = TRUE;
  IoFreeMdl(server->Mdl);
  IoFreeIrp(Irp);
  KeSetEvent(&server->Received, 0, FALSE);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

static NTSTATUS NTAPI OnReceive(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  PSERVER server = (PSERVER)ConnectionContext;
  CHECK(TdiEventContext == &Server && server == &Server);
  CHECK(BytesIndicated > 0 && BytesIndicated <= BytesAvailable);
  CHECK((ReceiveFlags & TDI_RECEIVE_NORMAL) != 0 && (ReceiveFlags & TDI_RECEIVE_EXPEDITED) == 0);
  server->Indications++;
  if (server->Stop) {
    *BytesTaken = 0;
    KeSetEvent(&server->Stopped, 0, FALSE);
    return STATUS_DATA_NOT_ACCEPTED;
  }
  if (server->Post) {
    PIRP irp = IoAllocateIrp(server->Connection.Device->StackSize, FALSE);
    ULONG taken = BytesIndicated / 2;
    TdiCopyLookaheadData(server->Data + server->Length, Tsdu, taken, ReceiveFlags);
    server->Length += taken;
    server->Mdl = IoAllocateMdl(server->Rest, sizeof server->Rest, FALSE, FALSE, NULL);
    MmBuildMdlForNonPagedPool(server->Mdl);
    TdiBuildReceive(irp, server->Connection.Device, server->Connection.File, RestDone, server, server->Mdl,
                    TDI_RECEIVE_NORMAL, sizeof server->Rest);
    IoSetNextIrpStackLocation(irp);
    *BytesTaken = taken;
    *IoRequestPacket = irp;
    return STATUS_MORE_PROCESSING_REQUIRED;
  }
  TdiCopyLookaheadData(server->Data + server->Length, Tsdu, BytesIndicated, ReceiveFlags);
  server->Length += BytesIndicated;
  *BytesTaken = BytesIndicated;
  server->Ended = (BOOLEAN)((ReceiveFlags & TDI_RECEIVE_ENTIRE_MESSAGE) != 0);
  if (server->Ended)
    KeSetEvent(&server->Received, 0, FALSE);
  return STATUS_SUCCESS;
}

static NTSTATUS NTAPI OnDisconnect(PVOID TdiEventContext, CONNECTION_CONTEXT ConnectionContext,
                                   LONG DisconnectDataLength, PVOID DisconnectData, LONG DisconnectInformationLength,
                                   PVOID DisconnectInformation, ULONG DisconnectFlags) {
  CHECK(TdiEventContext == &Server && ConnectionContext == (CONNECTION_CONTEXT)&Server);
  CHECK(DisconnectDataLength == 0 && DisconnectData == NULL);
  CHECK(DisconnectInformationLength == 0 && DisconnectInformation == NULL);
  CHECK(DisconnectFlags == TDI_DISCONNECT_ABORT);
  KeSetEvent(&Server.Disconnected, 0, FALSE);
  return STATUS_SUCCESS;
}

static void Await(PKEVENT Event) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

static void Exchange(POPENED Client, BOOLEAN Post) {
  static UCHAR data[PART];
  ULONG at, taken;
  for (at = 0; at < PART; at++)
    data[at] = (UCHAR)(at * 7 + Post);
  Server.Length = Server.Indications = 0;
  Server.Ended = FALSE;
  Server.Post = Post;
  CHECK_STATUS(Send(Client, data, PART / 2, TDI_SEND_PARTIAL, &taken), STATUS_SUCCESS);
  CHECK_STATUS(Send(Client, data + PART / 2, PART / 2, 0, &taken), STATUS_SUCCESS);
  Await(&Server.Received);
  /* The boundaries of TSDUs are kept, and only the last indication of each says that it is the end. */
  CHECK(Server.Ended && Server.Length == PART && memcmp(Server.Data, data, PART) == 0);
  CHECK(Server.Indications >= 1 && Server.Posted == (Post ? 1U : 0U));
}

int main(int argc, char **argv) {
  OPENED address, client;
  ULONG taken, count;
  char buffer[10];
  USHORT port;
  SelectDevice(argc, argv);
  KeInitializeEvent(&Server.Accepted, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Received, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Disconnected, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Server.Stopped, SynchronizationEvent, FALSE);
  CHECK_STATUS(OpenAddress(&Server.Address, 0, 0), STATUS_SUCCESS);
  port = PortOf(&Server.Address);
  OpenConnection(&Server.Connection, &Server);
  CHECK_STATUS(Associate(&Server.Connection, &Server.Address), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_CONNECT, (PVOID)OnConnect, &Server), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_RECEIVE, (PVOID)OnReceive, &Server), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_DISCONNECT, (PVOID)OnDisconnect, &Server), STATUS_SUCCESS);
  /* Expedited data can be waited for. It never comes. */
  CHECK_STATUS(SetHandler(&Server.Address, TDI_EVENT_RECEIVE_EXPEDITED, (PVOID)OnReceive, NULL), STATUS_SUCCESS);
  OpenAnyAddress(&address);
  OpenConnection(&client, NULL);
  CHECK_STATUS(Associate(&client, &address), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&client, port), STATUS_REMOTE_NOT_LISTENING);
  CHECK_STATUS(Connect(&client, port), STATUS_SUCCESS);
  Await(&Server.Accepted);
  CHECK_STATUS(Server.Accept, STATUS_SUCCESS);
  Exchange(&client, FALSE);
  Exchange(&client, TRUE);
  /* After a refusal the data is held for a receive, after which indications go on. */
  Server.Post = FALSE;
  Server.Stop = TRUE;
  CHECK_STATUS(Send(&client, "held", 4, 0, &taken), STATUS_SUCCESS);
  Await(&Server.Stopped);
  Server.Stop = FALSE;
  Server.Length = 0;
  CHECK_STATUS(Receive(&Server.Connection, buffer, sizeof buffer, 0, &count), STATUS_SUCCESS);
  CHECK(count == 4 && memcmp(buffer, "held", 4) == 0);
  CHECK_STATUS(Send(&client, "again", 5, 0, &taken), STATUS_SUCCESS);
  Await(&Server.Received);
  CHECK(Server.Length == 5 && memcmp(Server.Data, "again", 5) == 0);
  CHECK_STATUS(Disconnect(&client, TDI_DISCONNECT_RELEASE), STATUS_SUCCESS);
  Await(&Server.Disconnected);
  /* The handler accepts on the same connection again. */
  CHECK_STATUS(Connect(&client, port), STATUS_SUCCESS);
  Await(&Server.Accepted);
  /* A second client finds the connection in use: its accept completes with an error, and the peer is refused. */
  {
    OPENED second;
    OpenConnection(&second, NULL);
    CHECK_STATUS(Associate(&second, &address), STATUS_SUCCESS);
    CHECK_STATUS(Connect(&second, port), STATUS_REMOTE_NOT_LISTENING);
    Await(&Server.Accepted);
    CHECK_STATUS(Server.Accept, STATUS_CONNECTION_ACTIVE);
    CloseFile(&second);
  }
  CloseFile(&client);
  Await(&Server.Disconnected);
  CloseFile(&address);
  CloseFile(&Server.Connection);
  CloseFile(&Server.Address);
  printf("events over %s: accepted, received, disconnected\n", DeviceText);
  return 0;
}
