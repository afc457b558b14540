/* A TDI server that has event handlers only: it returns each TSDU of one client, and ends when the client disconnects. */
#include <ntddk.h>
#include <stdio.h>
#include <stdlib.h>
#include <tdikrnl.h>

#define TAG 0x6F686345 /* "Echo" */

static PDEVICE_OBJECT Device;
static PFILE_OBJECT Address, Connection;
static KEVENT Disconnected;

/* A TSDU that is returned: its memory, and the request that sends it. */
typedef struct _ECHO {
  PMDL Mdl;
  UCHAR Data[1];
} ECHO_TSDU, *PECHO_TSDU;

static NTSTATUS NTAPI Freed(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PECHO_TSDU echo = (PECHO_TSDU)Context;
  UNREFERENCED_PARAMETER(DeviceObject);
  if (echo != NULL) {
    printf("returned %u bytes: 0x%08X\n", (unsigned)Irp->IoStatus.Information, (unsigned)Irp->IoStatus.Status);
    IoFreeMdl(echo->Mdl);
    ExFreePool(echo);
  }
  IoFreeIrp(Irp);
  return STATUS_MORE_PROCESSING_REQUIRED;
}

/* ClientEventConnect accepts the peer. */
static NTSTATUS NTAPI OnConnect(PVOID Context, LONG AddressLength, PVOID RemoteAddress, LONG UserDataLength,
                                PVOID UserData, LONG OptionsLength, PVOID Options,
                                CONNECTION_CONTEXT *ConnectionContext, PIRP *AcceptIrp) {
  PIRP irp = IoAllocateIrp(Device->StackSize, FALSE);
  UNREFERENCED_PARAMETER(Context);
  UNREFERENCED_PARAMETER(AddressLength);
  UNREFERENCED_PARAMETER(RemoteAddress);
  UNREFERENCED_PARAMETER(UserDataLength);
  UNREFERENCED_PARAMETER(UserData);
  UNREFERENCED_PARAMETER(OptionsLength);
  UNREFERENCED_PARAMETER(Options);
  if (irp == NULL)
    return STATUS_INSUFFICIENT_RESOURCES;
  TdiBuildAccept(irp, Device, Connection, Freed, NULL, NULL, NULL);
  IoSetNextIrpStackLocation(irp);
  *ConnectionContext = NULL;
  *AcceptIrp = irp;
  return STATUS_MORE_PROCESSING_REQUIRED;
}

/* ClientEventReceive returns what arrives. The parts of a long TSDU are PARTIAL sends. */
static NTSTATUS NTAPI OnReceive(PVOID Context, CONNECTION_CONTEXT ConnectionContext, ULONG ReceiveFlags,
                                ULONG BytesIndicated, ULONG BytesAvailable, ULONG *BytesTaken, PVOID Tsdu,
                                PIRP *IoRequestPacket) {
  ULONG flags = (ReceiveFlags & TDI_RECEIVE_ENTIRE_MESSAGE) != 0 ? 0 : TDI_SEND_PARTIAL;
  PECHO_TSDU echo = (PECHO_TSDU)ExAllocatePoolWithTag(NonPagedPool, sizeof(ECHO_TSDU) + BytesIndicated, TAG);
  PIRP irp = IoAllocateIrp(Device->StackSize, FALSE);
  UNREFERENCED_PARAMETER(Context);
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(BytesAvailable);
  UNREFERENCED_PARAMETER(IoRequestPacket);
  TdiCopyLookaheadData(echo->Data, Tsdu, BytesIndicated, ReceiveFlags);
  echo->Mdl = IoAllocateMdl(echo->Data, BytesIndicated, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(echo->Mdl);
  TdiBuildSend(irp, Device, Connection, Freed, echo, echo->Mdl, flags, BytesIndicated);
  IoCallDriver(Device, irp);
  *BytesTaken = BytesIndicated;
  return STATUS_SUCCESS;
}

static NTSTATUS NTAPI OnDisconnect(PVOID Context, CONNECTION_CONTEXT ConnectionContext, LONG DataLength, PVOID Data,
                                   LONG InformationLength, PVOID Information, ULONG DisconnectFlags) {
  UNREFERENCED_PARAMETER(Context);
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(DataLength);
  UNREFERENCED_PARAMETER(Data);
  UNREFERENCED_PARAMETER(InformationLength);
  UNREFERENCED_PARAMETER(Information);
  UNREFERENCED_PARAMETER(DisconnectFlags);
  KeSetEvent(&Disconnected, 0, FALSE);
  return STATUS_SUCCESS;
}

static HANDLE Open(const char *Name, const void *Value, USHORT Length, PFILE_OBJECT *File) {
  UCHAR buffer[100] = {0};
  PFILE_FULL_EA_INFORMATION ea = (PFILE_FULL_EA_INFORMATION)buffer;
  OBJECT_ATTRIBUTES attributes;
  IO_STATUS_BLOCK status;
  UNICODE_STRING device;
  HANDLE handle;
  PVOID object;
  ea->EaNameLength = (UCHAR)strlen(Name);
  ea->EaValueLength = Length;
  memcpy(ea->EaName, Name, ea->EaNameLength + 1);
  memcpy(ea->EaName + ea->EaNameLength + 1, Value, Length);
  RtlInitUnicodeString(&device, L"\\Device\\SmbDirect");
  InitializeObjectAttributes(&attributes, &device, OBJ_KERNEL_HANDLE, NULL, NULL);
  if (!NT_SUCCESS(ZwCreateFile(&handle, 0, &attributes, &status, NULL, 0, 0, FILE_OPEN, 0, ea, sizeof buffer)))
    exit(1);
  ObReferenceObjectByHandle(handle, 0, *IoFileObjectType, KernelMode, &object, NULL);
  *File = (PFILE_OBJECT)object;
  Device = IoGetRelatedDeviceObject(*File);
  return handle;
}

static void Run(PIRP Irp, PKEVENT Event) {
  IoCallDriver(Device, Irp);
  KeWaitForSingleObject(Event, Executive, KernelMode, FALSE, NULL);
}

static void SetHandler(LONG Type, PVOID Handler) {
  IO_STATUS_BLOCK status;
  KEVENT event;
  PIRP irp;
  KeInitializeEvent(&event, NotificationEvent, FALSE);
  irp = TdiBuildInternalDeviceControlIrp(TDI_SET_EVENT_HANDLER, Device, Address, &event, &status);
  TdiBuildSetEventHandler(irp, Device, Address, NULL, NULL, Type, Handler, NULL);
  Run(irp, &event);
}

int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 445;
  TA_IP_ADDRESS local = {1, {{TDI_ADDRESS_LENGTH_IP, TDI_ADDRESS_TYPE_IP, {{0, 0x0100007F, {0}}}}}};
  CONNECTION_CONTEXT context = NULL;
  IO_STATUS_BLOCK status;
  KEVENT event;
  PIRP irp;
  HANDLE address, connection;
  local.Address[0].Address[0].sin_port = (USHORT)((port & 0xFF) << 8 | port >> 8);
  address = Open(TdiTransportAddress, &local, sizeof local, &Address);
  connection = Open(TdiConnectionContext, &context, sizeof context, &Connection);
  KeInitializeEvent(&Disconnected, NotificationEvent, FALSE);
  KeInitializeEvent(&event, NotificationEvent, FALSE);
  irp = TdiBuildInternalDeviceControlIrp(TDI_ASSOCIATE_ADDRESS, Device, Connection, &event, &status);
  TdiBuildAssociateAddress(irp, Device, Connection, NULL, NULL, address);
  Run(irp, &event);
  SetHandler(TDI_EVENT_RECEIVE, (PVOID)OnReceive);
  SetHandler(TDI_EVENT_DISCONNECT, (PVOID)OnDisconnect);
  SetHandler(TDI_EVENT_CONNECT, (PVOID)OnConnect);
  printf("listening on 127.0.0.1:%d\n", port);
  fflush(stdout);
  KeWaitForSingleObject(&Disconnected, Executive, KernelMode, FALSE, NULL);
  ZwClose(connection);
  ZwClose(address);
  ObDereferenceObject(Connection);
  ObDereferenceObject(Address);
  return 0;
}
