/* A TDI client: connects to a port of this machine, sends a TSDU in two parts, and prints the answer. */
#include <ntddk.h>
#include <stdio.h>
#include <stdlib.h>
#include <tdikrnl.h>

static UNICODE_STRING Name = RTL_CONSTANT_STRING(L"\\Device\\SmbDirect");
static PDEVICE_OBJECT Device;
static PVOID File;
static KEVENT Event;
static IO_STATUS_BLOCK Status;

static HANDLE Open(const char *Attribute, const void *Value, USHORT Length) {
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
  return handle;
}

#define RUN(Text, Build, ...)                                                                      \
  do {                                                                                             \
    PIRP irp = TdiBuildInternalDeviceControlIrp(TDI_SEND, Device, File, &Event, &Status);          \
    Build(irp, Device, File, NULL, NULL, __VA_ARGS__);                                             \
    IoCallDriver(Device, irp);                                                                     \
    KeWaitForSingleObject(&Event, Executive, KernelMode, FALSE, NULL);                             \
    printf("%s: 0x%08X, %u bytes\n", Text, (unsigned)Status.Status, (unsigned)Status.Information); \
  } while (0)

int main(int argc, char **argv) {
  USHORT port = RtlUshortByteSwap((USHORT)(argc > 1 ? atoi(argv[1]) : 445));
  TA_IP_ADDRESS any = {1, {{TDI_ADDRESS_LENGTH_IP, TDI_ADDRESS_TYPE_IP, {{0, 0, {0}}}}}};
  TA_IP_ADDRESS peer = {1, {{TDI_ADDRESS_LENGTH_IP, TDI_ADDRESS_TYPE_IP, {{port, 0x0100007F, {0}}}}}};
  TDI_CONNECTION_INFORMATION to = {0, NULL, 0, NULL, sizeof peer, &peer};
  char text[100] = "hello, ";
  PMDL mdl = IoAllocateMdl(text, sizeof text, FALSE, FALSE, NULL);
  HANDLE address = Open(TdiTransportAddress, &any, sizeof any);
  HANDLE connection = Open(TdiConnectionContext, &mdl, sizeof mdl);
  ObReferenceObjectByHandle(connection, 0, *IoFileObjectType, KernelMode, &File, NULL);
  Device = IoGetRelatedDeviceObject(File);
  MmBuildMdlForNonPagedPool(mdl);
  KeInitializeEvent(&Event, SynchronizationEvent, FALSE);
  RUN("associate", TdiBuildAssociateAddress, address);
  RUN("connect", TdiBuildConnect, NULL, &to, NULL);
  RUN("send PARTIAL", TdiBuildSend, mdl, TDI_SEND_PARTIAL, 7);
  memcpy(text, "world", 5);
  RUN("send", TdiBuildSend, mdl, 0, 5);
  RUN("receive", TdiBuildReceive, mdl, TDI_RECEIVE_NORMAL, sizeof text);
  printf("the answer is \"%.*s\"\n", (int)Status.Information, text);
  IoFreeMdl(mdl);
  ObDereferenceObject(File);
  return ZwClose(connection) != 0 || ZwClose(address) != 0;
}
