/* A TDI client: connects to a port of this machine, sends a TSDU in two parts, and prints the answer. */
#include <ntddk.h>
#include <stdio.h>
#include <stdlib.h>
#include <tdikrnl.h>

static PDEVICE_OBJECT Device;
static KEVENT Event;
static IO_STATUS_BLOCK Status;

static HANDLE Open(const char *Name, const void *Value, USHORT Length, PVOID *File) {
  UCHAR buffer[100] = {0};
  PFILE_FULL_EA_INFORMATION ea = (PFILE_FULL_EA_INFORMATION)buffer;
  OBJECT_ATTRIBUTES attributes;
  UNICODE_STRING device;
  HANDLE handle;
  ea->EaNameLength = (UCHAR)strlen(Name);
  ea->EaValueLength = Length;
  memcpy(ea->EaName, Name, ea->EaNameLength + 1);
  memcpy(ea->EaName + ea->EaNameLength + 1, Value, Length);
  RtlInitUnicodeString(&device, L"\\Device\\SmbDirect");
  InitializeObjectAttributes(&attributes, &device, OBJ_KERNEL_HANDLE, NULL, NULL);
  if (!NT_SUCCESS(ZwCreateFile(&handle, 0, &attributes, &Status, NULL, 0, 0, FILE_OPEN, 0, ea, sizeof buffer)))
    exit(1);
  ObReferenceObjectByHandle(handle, 0, *IoFileObjectType, KernelMode, File, NULL);
  Device = IoGetRelatedDeviceObject((PFILE_OBJECT)*File);
  return handle;
}

static PIRP New(void) {
  KeInitializeEvent(&Event, NotificationEvent, FALSE);
  return TdiBuildInternalDeviceControlIrp(TDI_SEND, Device, NULL, &Event, &Status);
}

static void Run(const char *Request, PIRP Irp) {
  IoCallDriver(Device, Irp);
  KeWaitForSingleObject(&Event, Executive, KernelMode, FALSE, NULL);
  printf("%s: 0x%08X, %u bytes\n", Request, (unsigned)Status.Status, (unsigned)Status.Information);
}

int main(int argc, char **argv) {
  int port = argc > 1 ? atoi(argv[1]) : 445;
  TA_IP_ADDRESS any = {1, {{TDI_ADDRESS_LENGTH_IP, TDI_ADDRESS_TYPE_IP, {{0, 0, {0}}}}}}, peer = any;
  TDI_CONNECTION_INFORMATION to = {0, NULL, 0, NULL, sizeof peer, &peer};
  CONNECTION_CONTEXT context = NULL;
  char text[100] = "hello, ";
  PVOID files[2];
  HANDLE address = Open(TdiTransportAddress, &any, sizeof any, &files[0]);
  HANDLE connection = Open(TdiConnectionContext, &context, sizeof context, &files[1]);
  PFILE_OBJECT file = (PFILE_OBJECT)files[1];
  PMDL mdl = IoAllocateMdl(text, sizeof text, FALSE, FALSE, NULL);
  PIRP irp = New();
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildAssociateAddress(irp, Device, file, NULL, NULL, address);
  Run("associate", irp);
  peer.Address[0].Address[0].in_addr = 0x0100007F;
  peer.Address[0].Address[0].sin_port = (USHORT)((port & 0xFF) << 8 | port >> 8);
  irp = New();
  TdiBuildConnect(irp, Device, file, NULL, NULL, NULL, &to, NULL);
  Run("connect", irp);
  irp = New();
  TdiBuildSend(irp, Device, file, NULL, NULL, mdl, TDI_SEND_PARTIAL, 7);
  Run("send PARTIAL", irp);
  memcpy(text, "world", 5);
  irp = New();
  TdiBuildSend(irp, Device, file, NULL, NULL, mdl, 0, 5);
  Run("send", irp);
  irp = New();
  TdiBuildReceive(irp, Device, file, NULL, NULL, mdl, TDI_RECEIVE_NORMAL, sizeof text);
  Run("receive", irp);
  printf("the answer is \"%.*s\"\n", (int)Status.Information, text);
  IoFreeMdl(mdl);
  ZwClose(connection);
  ZwClose(address);
  ObDereferenceObject(files[1]);
  ObDereferenceObject(files[0]);
  return 0;
}
