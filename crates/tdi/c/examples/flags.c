/* Each flag of TdiBuildSend, sent to an echo service on this machine, whose answers show what arrived. */
#include <ntddk.h>
#include <stdio.h>
#include <stdlib.h>
#include <tdikrnl.h>

#define BLOCK 60000

static UNICODE_STRING Name = RTL_CONSTANT_STRING(L"\\Device\\SmbDirect");
static PDEVICE_OBJECT Device;
static PVOID Address, Connection;
static KEVENT Event, Possible;
static IO_STATUS_BLOCK Status;

static HANDLE Open(const char *Attribute, const void *Value, USHORT Length, PVOID *File) {
  UCHAR buffer[100] = {0};
  PFILE_FULL_EA_INFORMATION ea = (PFILE_FULL_EA_INFORMATION)buffer;
  OBJECT_ATTRIBUTES attributes;
  HANDLE handle;
  ea->EaNameLength = (UCHAR)strlen(Attribute);
  ea->EaValueLength = Length;
  memcpy(ea->EaName, Attribute, ea->EaNameLength + 1);
  memcpy(ea->EaName + ea->EaNameLength + 1, Value, Length);
  InitializeObjectAttributes(&attributes, &Name, OBJ_KERNEL_HANDLE, NULL, NULL);
  if (!NT_SUCCESS(ZwCreateFile(&handle, 0, &attributes, &Status, NULL, 0, 0, FILE_OPEN, 0, ea, sizeof buffer)))
    exit(1);
  ObReferenceObjectByHandle(handle, 0, *IoFileObjectType, KernelMode, File, NULL);
  Device = IoGetRelatedDeviceObject(*File);
  return handle;
}

static PIRP New(void) {
  return TdiBuildInternalDeviceControlIrp(TDI_SEND, Device, NULL, &Event, &Status);
}

/* Submits a request, and waits for its completion. */
static NTSTATUS Run(PIRP Irp) {
  IoCallDriver(Device, Irp);
  KeWaitForSingleObject(&Event, Executive, KernelMode, FALSE, NULL);
  return Status.Status;
}

/* Submits a request that has to succeed. */
static void Must(PIRP Irp) {
  NTSTATUS status = Run(Irp);
  if (!NT_SUCCESS(status)) {
    fprintf(stderr, "a request failed: 0x%08X\n", (unsigned)status);
    exit(1);
  }
}

/* Sends, and waits for the completion. */
static NTSTATUS Send(void *Data, ULONG Length, ULONG Flags) {
  PMDL mdl = IoAllocateMdl(Data, Length, FALSE, FALSE, NULL);
  PIRP irp = New();
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildSend(irp, Device, Connection, NULL, NULL, mdl, Flags, Length);
  Run(irp);
  IoFreeMdl(mdl);
  return Status.Status;
}

/* Sends a text, and prints the completion. */
static void Say(const char *Words, ULONG Flags, const char *Text) {
  char data[100];
  strcpy(data, Text);
  Send(data, (ULONG)strlen(Text), Flags);
  printf("send%s \"%s\": 0x%08X, %u bytes taken\n", Words, Text, (unsigned)Status.Status,
         (unsigned)Status.Information);
}

/* Receives a TSDU. */
static void Receive(UCHAR *Buffer) {
  PMDL mdl = IoAllocateMdl(Buffer, BLOCK, FALSE, FALSE, NULL);
  PIRP irp = New();
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildReceive(irp, Device, Connection, NULL, NULL, mdl, TDI_RECEIVE_NORMAL, BLOCK);
  Must(irp);
  IoFreeMdl(mdl);
}

static void Hear(void) {
  UCHAR buffer[BLOCK];
  Receive(buffer);
  printf("the peer returned \"%.*s\"\n", (int)Status.Information, buffer);
}

static NTSTATUS NTAPI OnSendPossible(PVOID Context, PVOID ConnectionContext, ULONG BytesAvailable) {
  UNREFERENCED_PARAMETER(Context);
  UNREFERENCED_PARAMETER(ConnectionContext);
  UNREFERENCED_PARAMETER(BytesAvailable);
  KeSetEvent(&Possible, 0, FALSE);
  return STATUS_SUCCESS;
}

/* Sends blocks until the send buffer has no room, then receives what came back, and sends the rest of the last. */
static void NonBlocking(void) {
  static UCHAR block[BLOCK];
  ULONG sent = 0, rest = BLOCK;
  while (Send(block + BLOCK - rest, rest, TDI_SEND_NON_BLOCKING) == STATUS_SUCCESS) {
    rest -= (ULONG)Status.Information;
    if (rest == 0) {
      sent++;
      rest = BLOCK;
    }
  }
  printf("send NON_BLOCKING until there is no room: 0x%08X\n", (unsigned)Status.Status);
  for (; sent > 0; sent--)
    Receive(block);
  KeWaitForSingleObject(&Possible, Executive, KernelMode, FALSE, NULL);
  printf("a send is possible\n");
  Send(block + BLOCK - rest, rest, TDI_SEND_NON_BLOCKING);
  printf("send NON_BLOCKING of the rest: 0x%08X\n", (unsigned)Status.Status);
  Receive(block);
  printf("the peer returned all blocks\n");
}

int main(int argc, char **argv) {
  USHORT port = RtlUshortByteSwap((USHORT)(argc > 1 ? atoi(argv[1]) : 445));
  TA_IP_ADDRESS any = {1, {{TDI_ADDRESS_LENGTH_IP, TDI_ADDRESS_TYPE_IP, {{0, 0, {0}}}}}};
  TA_IP_ADDRESS peer = {1, {{TDI_ADDRESS_LENGTH_IP, TDI_ADDRESS_TYPE_IP, {{port, 0x0100007F, {0}}}}}};
  TDI_CONNECTION_INFORMATION to = {0, NULL, 0, NULL, sizeof peer, &peer};
  HANDLE address = Open(TdiTransportAddress, &any, sizeof any, &Address);
  HANDLE connection = Open(TdiConnectionContext, &Device, sizeof Device, &Connection);
  PIRP irp;
  KeInitializeEvent(&Event, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Possible, SynchronizationEvent, FALSE);
  irp = New();
  TdiBuildAssociateAddress(irp, Device, Connection, NULL, NULL, address);
  Must(irp);
  irp = New();
  TdiBuildSetEventHandler(irp, Device, Address, NULL, NULL, TDI_EVENT_SEND_POSSIBLE, OnSendPossible, NULL);
  Must(irp);
  irp = New();
  TdiBuildConnect(irp, Device, Connection, NULL, NULL, NULL, &to, NULL);
  Must(irp);
  Say("", 0, "hello");
  Hear();
  Say(" PARTIAL", TDI_SEND_PARTIAL, "in ");
  Say(" PARTIAL", TDI_SEND_PARTIAL, "three ");
  Say("", 0, "parts");
  Hear();
  Say(" EXPEDITED", TDI_SEND_EXPEDITED, "urgent");
  Hear();
  Say(" NO_RESPONSE_EXPECTED", TDI_SEND_NO_RESPONSE_EXPECTED, "no hurry");
  Hear();
  Say(" NON_BLOCKING", TDI_SEND_NON_BLOCKING, "now or never");
  Hear();
  NonBlocking();
  Say(" PARTIAL NON_BLOCKING", TDI_SEND_PARTIAL | TDI_SEND_NON_BLOCKING, "normal ");
  Say(" EXPEDITED PARTIAL", TDI_SEND_EXPEDITED | TDI_SEND_PARTIAL, "expedited ");
  Say(" EXPEDITED NO_RESPONSE_EXPECTED", TDI_SEND_EXPEDITED | TDI_SEND_NO_RESPONSE_EXPECTED, "TSDU");
  Hear();
  Say("", 0, "TSDU");
  Hear();
  Say(" AND_DISCONNECT", TDI_SEND_AND_DISCONNECT, "bye");
  Say("", 0, "");
  irp = New();
  TdiBuildDisconnect(irp, Device, Connection, NULL, NULL, NULL, TDI_DISCONNECT_RELEASE, NULL, NULL);
  Must(irp);
  Say("", 0, "too late");
  ObDereferenceObject(Connection);
  ObDereferenceObject(Address);
  return ZwClose(connection) != 0 || ZwClose(address) != 0;
}
