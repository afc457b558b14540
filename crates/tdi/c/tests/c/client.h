/* What the TDI clients of the tests share. They include only Windows' headers and those of C, so that the same files
 * compile against the headers of this package and against those of Windows' driver kit. */
#include <ntddk.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tdi.h>
#include <tdikrnl.h>

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
      exit(1);                                                              \
    }                                                                       \
  } while (0)

#define CHECK_STATUS(expression, expected)                                                                   \
  do {                                                                                                       \
    NTSTATUS status_ = (expression);                                                                         \
    if (status_ != (NTSTATUS)(expected)) {                                                                   \
      fprintf(stderr, "%s:%d: %s is 0x%08X\n", __FILE__, __LINE__, #expression, (unsigned int)status_);      \
      exit(1);                                                                                               \
    }                                                                                                        \
  } while (0)

/* An open file. */
typedef struct _OPENED {
  HANDLE Handle;
  PFILE_OBJECT File;
  PDEVICE_OBJECT Device;
} OPENED, *POPENED;

/* A request that was submitted. */
typedef struct _SUBMITTED {
  KEVENT Event;
  IO_STATUS_BLOCK Status;
  PIRP Irp;
  NTSTATUS First;
  PMDL Mdl;
} SUBMITTED, *PSUBMITTED;

static PWSTR DeviceName;
static const char *DeviceText;

/* Selects the device by the first argument of the program. */
static void SelectDevice(int argc, char **argv) {
  DeviceText = argc > 1 ? argv[1] : "loopback";
  if (strcmp(DeviceText, "iwarp") == 0)
    DeviceName = (PWSTR)L"\\Device\\SmbDirect";
  else if (strcmp(DeviceText, "roce") == 0)
    DeviceName = (PWSTR)L"\\Device\\SmbDirectRoce";
  else
    DeviceName = (PWSTR)L"\\Device\\SmbDirectLoopback";
}

static NTSTATUS OpenFile(POPENED Opened, const char *EaName, const void *Value, USHORT ValueLength, ULONG Share) {
  UNICODE_STRING name;
  OBJECT_ATTRIBUTES attributes;
  IO_STATUS_BLOCK status;
  UCHAR buffer[200];
  PFILE_FULL_EA_INFORMATION ea = (PFILE_FULL_EA_INFORMATION)buffer;
  ULONG length = 0;
  NTSTATUS result;
  PVOID object;
  RtlInitUnicodeString(&name, DeviceName);
  InitializeObjectAttributes(&attributes, &name, OBJ_CASE_INSENSITIVE | OBJ_KERNEL_HANDLE, NULL, NULL);
  if (EaName != NULL) {
    memset(buffer, 0, sizeof buffer);
    ea->EaNameLength = (UCHAR)strlen(EaName);
    ea->EaValueLength = ValueLength;
    memcpy(ea->EaName, EaName, strlen(EaName) + 1);
    memcpy(ea->EaName + strlen(EaName) + 1, Value, ValueLength);
    length = (ULONG)(FIELD_OFFSET(FILE_FULL_EA_INFORMATION, EaName) + strlen(EaName) + 1 + ValueLength);
  }
  result = ZwCreateFile(&Opened->Handle, GENERIC_READ | GENERIC_WRITE | SYNCHRONIZE, &attributes, &status, NULL,
                        FILE_ATTRIBUTE_NORMAL, Share, FILE_OPEN_IF, 0, EaName == NULL ? NULL : ea, length);
  if (!NT_SUCCESS(result))
    return result;
  CHECK_STATUS(ObReferenceObjectByHandle(Opened->Handle, 0, *IoFileObjectType, KernelMode, &object, NULL), 0);
  Opened->File = (PFILE_OBJECT)object;
  Opened->Device = IoGetRelatedDeviceObject(Opened->File);
  CHECK(Opened->Device != NULL);
  return result;
}

static void CloseFile(POPENED Opened) {
  CHECK_STATUS(ZwClose(Opened->Handle), STATUS_SUCCESS);
  ObDereferenceObject(Opened->File);
}

/* Fills an IP address on this machine. Address and port have network byte order. */
static void LocalAddress(PTA_IP_ADDRESS Address, USHORT Port) {
  memset(Address, 0, sizeof *Address);
  Address->TAAddressCount = 1;
  Address->Address[0].AddressLength = TDI_ADDRESS_LENGTH_IP;
  Address->Address[0].AddressType = TDI_ADDRESS_TYPE_IP;
  Address->Address[0].Address[0].in_addr = 0x0100007F;
  Address->Address[0].Address[0].sin_port = Port;
}

static NTSTATUS OpenAddress(POPENED Opened, USHORT Port, ULONG Share) {
  TA_IP_ADDRESS address;
  LocalAddress(&address, Port);
  return OpenFile(Opened, TdiTransportAddress, &address, sizeof address, Share);
}

/* Opens an address that peers cannot connect to. */
static void OpenAnyAddress(POPENED Opened) {
  TA_IP_ADDRESS address;
  LocalAddress(&address, 0);
  address.Address[0].Address[0].in_addr = 0;
  CHECK_STATUS(OpenFile(Opened, TdiTransportAddress, &address, sizeof address, 0), STATUS_SUCCESS);
}

static void OpenConnection(POPENED Opened, CONNECTION_CONTEXT Context) {
  CHECK_STATUS(OpenFile(Opened, TdiConnectionContext, &Context, sizeof Context, 0), STATUS_SUCCESS);
}

/* Allocates an IRP that reports its completion to `Submitted`. */
static PIRP NewIrp(POPENED Opened, PSUBMITTED Submitted) {
  KeInitializeEvent(&Submitted->Event, NotificationEvent, FALSE);
  Submitted->Mdl = NULL;
  Submitted->Irp = TdiBuildInternalDeviceControlIrp(TDI_SEND, Opened->Device, Opened->File, &Submitted->Event,
                                                    &Submitted->Status);
  CHECK(Submitted->Irp != NULL);
  return Submitted->Irp;
}

static void Submit(POPENED Opened, PSUBMITTED Submitted) {
  Submitted->First = IoCallDriver(Opened->Device, Submitted->Irp);
}

/* Waits for the completion of a request. */
static NTSTATUS Finish(PSUBMITTED Submitted) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(&Submitted->Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
  CHECK(Submitted->First == STATUS_PENDING || Submitted->First == Submitted->Status.Status);
  if (Submitted->Mdl != NULL)
    IoFreeMdl(Submitted->Mdl);
  return Submitted->Status.Status;
}

static NTSTATUS Run(POPENED Opened, PSUBMITTED Submitted) {
  Submit(Opened, Submitted);
  return Finish(Submitted);
}

static NTSTATUS Associate(POPENED Connection, POPENED Address) {
  SUBMITTED submitted;
  PIRP irp = NewIrp(Connection, &submitted);
  TdiBuildAssociateAddress(irp, Connection->Device, Connection->File, NULL, NULL, Address->Handle);
  return Run(Connection, &submitted);
}

static NTSTATUS SetHandler(POPENED Address, LONG Event, PVOID Handler, PVOID Context) {
  SUBMITTED submitted;
  PIRP irp = NewIrp(Address, &submitted);
  TdiBuildSetEventHandler(irp, Address->Device, Address->File, NULL, NULL, Event, Handler, Context);
  return Run(Address, &submitted);
}

/* Returns the port of an address, in network byte order. */
static USHORT PortOf(POPENED Address) {
  UCHAR buffer[100];
  SUBMITTED submitted;
  TA_IP_ADDRESS found;
  PIRP irp = NewIrp(Address, &submitted);
  PMDL mdl = IoAllocateMdl(buffer, sizeof buffer, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildQueryInformation(irp, Address->Device, Address->File, NULL, NULL, TDI_QUERY_ADDRESS_INFO, mdl);
  CHECK_STATUS(Run(Address, &submitted), STATUS_SUCCESS);
  IoFreeMdl(mdl);
  memcpy(&found, buffer + FIELD_OFFSET(TDI_ADDRESS_INFO, Address), sizeof found);
  return found.Address[0].Address[0].sin_port;
}

static NTSTATUS Connect(POPENED Connection, USHORT Port) {
  TDI_CONNECTION_INFORMATION information;
  TA_IP_ADDRESS address;
  SUBMITTED submitted;
  PIRP irp = NewIrp(Connection, &submitted);
  LocalAddress(&address, Port);
  memset(&information, 0, sizeof information);
  information.RemoteAddress = &address;
  information.RemoteAddressLength = sizeof address;
  TdiBuildConnect(irp, Connection->Device, Connection->File, NULL, NULL, NULL, &information, NULL);
  return Run(Connection, &submitted);
}

static void SubmitListen(POPENED Connection, PSUBMITTED Submitted, ULONG Flags) {
  PIRP irp = NewIrp(Connection, Submitted);
  TdiBuildListen(irp, Connection->Device, Connection->File, NULL, NULL, Flags, NULL, NULL);
  Submit(Connection, Submitted);
}

static NTSTATUS Disconnect(POPENED Connection, ULONG Flags) {
  SUBMITTED submitted;
  PIRP irp = NewIrp(Connection, &submitted);
  TdiBuildDisconnect(irp, Connection->Device, Connection->File, NULL, NULL, NULL, Flags, NULL, NULL);
  return Run(Connection, &submitted);
}

static void SubmitSend(POPENED Connection, PSUBMITTED Submitted, const void *Data, ULONG Length, ULONG Flags) {
  PIRP irp = NewIrp(Connection, Submitted);
  PMDL mdl = IoAllocateMdl((PVOID)(ULONG_PTR)Data, Length, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  Submitted->Mdl = mdl;
  TdiBuildSend(irp, Connection->Device, Connection->File, NULL, NULL, mdl, Flags, Length);
  Submit(Connection, Submitted);
}

/* Sends and waits. Returns the status, and the number of bytes taken. */
static NTSTATUS Send(POPENED Connection, const void *Data, ULONG Length, ULONG Flags, ULONG *Taken) {
  SUBMITTED submitted;
  NTSTATUS status;
  SubmitSend(Connection, &submitted, Data, Length, Flags);
  status = Finish(&submitted);
  *Taken = (ULONG)submitted.Status.Information;
  return status;
}

static void SubmitReceive(POPENED Connection, PSUBMITTED Submitted, void *Buffer, ULONG Length, ULONG Flags) {
  PIRP irp = NewIrp(Connection, Submitted);
  PMDL mdl = IoAllocateMdl(Buffer, Length, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  Submitted->Mdl = mdl;
  TdiBuildReceive(irp, Connection->Device, Connection->File, NULL, NULL, mdl, Flags, Length);
  Submit(Connection, Submitted);
}

static NTSTATUS Receive(POPENED Connection, void *Buffer, ULONG Length, ULONG Flags, ULONG *Received) {
  SUBMITTED submitted;
  NTSTATUS status;
  SubmitReceive(Connection, &submitted, Buffer, Length, Flags);
  status = Finish(&submitted);
  *Received = (ULONG)submitted.Status.Information;
  return status;
}

/* Receives one TSDU and compares it. */
static void Expect(POPENED Connection, const char *Text) {
  char buffer[1000];
  ULONG received;
  CHECK_STATUS(Receive(Connection, buffer, sizeof buffer, 0, &received), STATUS_SUCCESS);
  if (received != strlen(Text) || memcmp(buffer, Text, received) != 0) {
    fprintf(stderr, "received \"%.*s\" instead of \"%s\"\n", (int)received, buffer, Text);
    exit(1);
  }
}

/* Two connections that are connected with each other. */
typedef struct _PAIR {
  OPENED Server, Client; /* addresses */
  OPENED There, Here;    /* connections */
  USHORT Port;
} PAIR, *PPAIR;

static void ConnectPair(PPAIR Pair) {
  SUBMITTED listen;
  CHECK_STATUS(OpenAddress(&Pair->Server, 0, 0), STATUS_SUCCESS);
  Pair->Port = PortOf(&Pair->Server);
  OpenConnection(&Pair->There, (CONNECTION_CONTEXT)1);
  CHECK_STATUS(Associate(&Pair->There, &Pair->Server), STATUS_SUCCESS);
  SubmitListen(&Pair->There, &listen, 0);
  OpenAnyAddress(&Pair->Client);
  OpenConnection(&Pair->Here, (CONNECTION_CONTEXT)2);
  CHECK_STATUS(Associate(&Pair->Here, &Pair->Client), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&Pair->Here, Pair->Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
}

static void ClosePair(PPAIR Pair) {
  CloseFile(&Pair->Here);
  CloseFile(&Pair->There);
  CloseFile(&Pair->Client);
  CloseFile(&Pair->Server);
}

/* Not every client uses each of these. */
static PVOID Used[] = {(PVOID)Receive, (PVOID)Send, (PVOID)Expect, (PVOID)ConnectPair, (PVOID)ClosePair,
                       (PVOID)Disconnect, (PVOID)SetHandler, (PVOID)SelectDevice, (PVOID)&Used};
