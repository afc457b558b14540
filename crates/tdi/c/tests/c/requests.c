/* The life of IRPs: completion routines and their switches, NULL routines, reuse and free inside a routine, cancel in
 * every state, waits, and statuses of each request (003.22 to 003.28, 003.59 to 003.64 of specs/tdi.toml). */
#include "client.h"

typedef struct _SEEN {
  KEVENT Event;
  ULONG Calls;
  NTSTATUS Status;
  ULONG_PTR Information;
  BOOLEAN Cancel;
  KIRQL Irql;
  NTSTATUS Answer;
  BOOLEAN Free;
  POPENED Again; /* submit the IRP again on this connection */
  PMDL Mdl;
} SEEN, *PSEEN;

static NTSTATUS NTAPI Completed(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  PSEEN seen = (PSEEN)Context;
  NTSTATUS answer = seen->Answer;
  CHECK(DeviceObject == NULL);
  seen->Calls++;
  seen->Status = Irp->IoStatus.Status;
  seen->Information = Irp->IoStatus.Information;
  seen->Cancel = Irp->Cancel;
  seen->Irql = KeGetCurrentIrql();
  if (seen->Again != NULL && seen->Calls < 10) {
    IoReuseIrp(Irp, STATUS_SUCCESS);
    TdiBuildSend(Irp, seen->Again->Device, seen->Again->File, Completed, seen, seen->Mdl, 0, 5);
    IoCallDriver(seen->Again->Device, Irp);
    return STATUS_MORE_PROCESSING_REQUIRED;
  }
  if (seen->Free)
    IoFreeIrp(Irp);
  KeSetEvent(&seen->Event, 0, FALSE);
  return answer;
}

static void Prepare(PSEEN Seen, NTSTATUS Answer) {
  memset(Seen, 0, sizeof *Seen);
  KeInitializeEvent(&Seen->Event, SynchronizationEvent, FALSE);
  Seen->Answer = Answer;
}

static void Await(PSEEN Seen) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(&Seen->Event, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

static PMDL Memory(PVOID Start, ULONG Length) {
  PMDL mdl = IoAllocateMdl(Start, Length, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  CHECK(MmGetMdlByteCount(mdl) == Length && MmGetMdlVirtualAddress(mdl) == Start);
  CHECK(MmGetSystemAddressForMdlSafe(mdl, NormalPagePriority) == Start);
  return mdl;
}

static char Hello[] = "hello";

/* A routine that returns STATUS_MORE_PROCESSING_REQUIRED owns the IRP again, and can free or submit it. */
static void Routines(PPAIR Pair) {
  PMDL mdl = Memory(Hello, 5);
  SEEN seen;
  PIRP irp;
  ULONG count;
  NTSTATUS status;
  Prepare(&seen, STATUS_MORE_PROCESSING_REQUIRED);
  irp = IoAllocateIrp(Pair->Here.Device->StackSize, FALSE);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, Completed, &seen, mdl, 0, 5);
  status = IoCallDriver(Pair->Here.Device, irp);
  CHECK(status == STATUS_PENDING || status == STATUS_SUCCESS);
  Await(&seen);
  CHECK(seen.Calls == 1 && seen.Status == STATUS_SUCCESS && seen.Information == 5 && seen.Irql == DISPATCH_LEVEL);
  CHECK(KeGetCurrentIrql() == PASSIVE_LEVEL);
  CHECK(irp->MdlAddress == mdl);
  Expect(&Pair->There, "hello");

  /* The same IRP again, and nine times more inside its routine, which frees it at last. */
  Prepare(&seen, STATUS_MORE_PROCESSING_REQUIRED);
  seen.Again = &Pair->Here;
  seen.Mdl = mdl;
  seen.Free = TRUE;
  IoReuseIrp(irp, STATUS_SUCCESS);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, Completed, &seen, mdl, 0, 5);
  IoCallDriver(Pair->Here.Device, irp);
  Await(&seen);
  CHECK(seen.Calls == 10);
  for (count = 0; count < 10; count++)
    Expect(&Pair->There, "hello");

  /* A routine that returns STATUS_SUCCESS lets the IRP end. */
  Prepare(&seen, STATUS_SUCCESS);
  irp = IoAllocateIrp(Pair->Here.Device->StackSize, FALSE);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, Completed, &seen, mdl, 0, 5);
  IoCallDriver(Pair->Here.Device, irp);
  Await(&seen);
  Expect(&Pair->There, "hello");

  /* 003.22 to 003.26: without a routine, the client is certain by the protocol. */
  irp = IoAllocateIrp(Pair->Here.Device->StackSize, FALSE);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, mdl, 0, 5);
  IoCallDriver(Pair->Here.Device, irp);
  Expect(&Pair->There, "hello");
  /* The release completes after the send, whose memory is the client's then. */
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_RELEASE), STATUS_SUCCESS);
  IoFreeMdl(mdl);
}

/* The switches of IoSetCompletionRoutine select success, error and cancel. */
static void Switches(PPAIR Pair) {
  ULONG which;
  for (which = 0; which < 8; which++) {
    BOOLEAN success = (which & 1) != 0, error = (which & 2) != 0, cancel = (which & 4) != 0;
    SUBMITTED submitted;
    SEEN seen;
    PIRP irp;
    Prepare(&seen, STATUS_SUCCESS);
    irp = NewIrp(&Pair->Here, &submitted);
    TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, NULL, 0, 0);
    IoSetCompletionRoutine(irp, Completed, &seen, success, error, cancel);
    CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_INVALID_CONNECTION);
    CHECK(seen.Calls == (error ? 1U : 0U));

    Prepare(&seen, STATUS_SUCCESS);
    irp = NewIrp(&Pair->Here, &submitted);
    TdiBuildDisassociateAddress(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL);
    IoSetCompletionRoutine(irp, Completed, &seen, success, error, cancel);
    CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
    CHECK(seen.Calls == (success ? 1U : 0U));
    CHECK_STATUS(Associate(&Pair->Here, &Pair->Client), STATUS_SUCCESS);

    /* An IRP that was cancelled before it was submitted. */
    Prepare(&seen, STATUS_SUCCESS);
    irp = NewIrp(&Pair->Here, &submitted);
    TdiBuildConnect(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, NULL, NULL, NULL);
    IoSetCompletionRoutine(irp, Completed, &seen, success, error, cancel);
    CHECK(!IoCancelIrp(irp));
    CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_CANCELLED);
    CHECK(seen.Calls == (error || cancel ? 1U : 0U));
  }
}

/* Listens, connects and receives are cancelled by IoCancelIrp, and so is everything by a disconnect and a close. */
static void Cancel(PPAIR Pair) {
  OPENED address, connection;
  SUBMITTED listen, receive, sends[2];
  TDI_CONNECTION_INFORMATION information;
  TA_IP_ADDRESS peer;
  char buffer[10];
  PIRP irp;
  CHECK_STATUS(OpenAddress(&address, 0, 0), STATUS_SUCCESS);
  OpenConnection(&connection, NULL);
  CHECK_STATUS(Associate(&connection, &address), STATUS_SUCCESS);
  SubmitListen(&connection, &listen, 0);
  CHECK(listen.First == STATUS_PENDING && IoCancelIrp(listen.Irp));
  CHECK_STATUS(Finish(&listen), STATUS_CANCELLED);
  SubmitListen(&connection, &listen, TDI_QUERY_ACCEPT);
  CHECK_STATUS(Disconnect(&connection, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_CANCELLED);
  SubmitListen(&connection, &listen, 0);
  CloseFile(&connection);
  /* The close has waited for the completion. */
  CHECK(KeReadStateEvent(&listen.Event) != 0);
  CHECK_STATUS(Finish(&listen), STATUS_CANCELLED);

  /* A connect to a listener that does not accept the offer. */
  OpenConnection(&connection, NULL);
  CHECK_STATUS(Associate(&connection, &address), STATUS_SUCCESS);
  SubmitListen(&connection, &listen, TDI_QUERY_ACCEPT);
  LocalAddress(&peer, PortOf(&address));
  memset(&information, 0, sizeof information);
  information.RemoteAddress = &peer;
  information.RemoteAddressLength = sizeof peer;
  irp = NewIrp(&Pair->Here, &receive);
  TdiBuildConnect(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, NULL, &information, NULL);
  Submit(&Pair->Here, &receive);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  CHECK(receive.First == STATUS_PENDING && IoCancelIrp(irp));
  CHECK_STATUS(Finish(&receive), STATUS_CANCELLED);
  CloseFile(&connection);
  CloseFile(&address);

  /* Receives, and parts of a TSDU. */
  SubmitListen(&Pair->There, &listen, 0);
  CHECK_STATUS(Connect(&Pair->Here, Pair->Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  SubmitReceive(&Pair->There, &receive, buffer, sizeof buffer, 0);
  CHECK(receive.First == STATUS_PENDING && IoCancelIrp(receive.Irp));
  CHECK_STATUS(Finish(&receive), STATUS_CANCELLED);
  CHECK(receive.Status.Information == 0);
  SubmitReceive(&Pair->There, &receive, buffer, sizeof buffer, 0);
  SubmitSend(&Pair->Here, &sends[0], "part", 4, TDI_SEND_PARTIAL);
  CHECK_STATUS(Finish(&sends[0]), STATUS_SUCCESS);
  /* An open TSDU would be lost by a release. */
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_RELEASE), STATUS_INVALID_PARAMETER);
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_ABORT | TDI_DISCONNECT_RELEASE), STATUS_INVALID_PARAMETER);
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_WAIT), STATUS_NOT_SUPPORTED);
  CHECK_STATUS(Disconnect(&Pair->Here, 0), STATUS_SUCCESS);
  CHECK_STATUS(Disconnect(&Pair->Here, 0), STATUS_INVALID_CONNECTION);
  CHECK_STATUS(Finish(&receive), STATUS_LINK_FAILED);
}

/* Receives: the end of a TSDU, a full buffer, a peek, and chains of memory. TDI-RECV-01 to 06 */
static void Receives(PPAIR Pair) {
  SUBMITTED listen, submitted;
  char buffer[20], first[3], second[4];
  ULONG count, taken;
  PMDL mdl;
  PIRP irp;
  SubmitListen(&Pair->There, &listen, 0);
  CHECK_STATUS(Connect(&Pair->Here, Pair->Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  CHECK_STATUS(Send(&Pair->Here, "0123456789", 10, 0, &taken), STATUS_SUCCESS);
  CHECK_STATUS(Receive(&Pair->There, buffer, 4, 0, &count), STATUS_BUFFER_OVERFLOW);
  CHECK(count == 4 && memcmp(buffer, "0123", 4) == 0);
  CHECK_STATUS(Receive(&Pair->There, buffer, sizeof buffer, TDI_RECEIVE_PEEK, &count), STATUS_SUCCESS);
  CHECK(count == 6 && memcmp(buffer, "456789", 6) == 0);
  CHECK_STATUS(Receive(&Pair->There, buffer, sizeof buffer, TDI_RECEIVE_EXPEDITED, &count), STATUS_NOT_SUPPORTED);
  mdl = Memory(first, 3);
  mdl->Next = Memory(second, 4);
  irp = NewIrp(&Pair->There, &submitted);
  TdiBuildReceive(irp, Pair->There.Device, Pair->There.File, NULL, NULL, mdl, TDI_RECEIVE_NORMAL, 7);
  CHECK_STATUS(Run(&Pair->There, &submitted), STATUS_SUCCESS);
  CHECK(submitted.Status.Information == 6 && memcmp(first, "456", 3) == 0 && memcmp(second, "789", 3) == 0);
  IoFreeMdl(mdl->Next);
  IoFreeMdl(mdl);
  CHECK_STATUS(Disconnect(&Pair->Here, 0), STATUS_SUCCESS);
}

/* Queries a file, and returns the number of bytes of the answer. */
static ULONG Query(POPENED Opened, ULONG Type, PVOID Answer, ULONG Length, NTSTATUS Expected) {
  SUBMITTED submitted;
  PMDL mdl = Memory(Answer, Length);
  PIRP irp = NewIrp(Opened, &submitted);
  TdiBuildQueryInformation(irp, Opened->Device, Opened->File, NULL, NULL, Type, mdl);
  CHECK_STATUS(Run(Opened, &submitted), Expected);
  IoFreeMdl(mdl);
  return (ULONG)submitted.Status.Information;
}

/* The counters of the transport and of a connection. TDI-QUERY-02 */
static void Queries(PPAIR Pair) {
  union {
    TDI_PROVIDER_STATISTICS Statistics;
    UCHAR Room[500];
  } counters;
  PTDI_PROVIDER_RESOURCE_STATS resources;
  TDI_CONNECTION_INFO info;
  ULONG length = Query(&Pair->Client, TDI_QUERY_PROVIDER_STATISTICS, &counters, sizeof counters, STATUS_SUCCESS);
  CHECK(length == sizeof(TDI_PROVIDER_STATISTICS) + sizeof(TDI_PROVIDER_RESOURCE_STATS));
  CHECK(counters.Statistics.Version == 0x0200 && counters.Statistics.OpenConnections == 2);
  resources = (PTDI_PROVIDER_RESOURCE_STATS)(counters.Room + FIELD_OFFSET(TDI_PROVIDER_STATISTICS, ResourceStats));
  CHECK(counters.Statistics.NumberOfResources == 2 && resources[1].ResourceId == 1);
  CHECK(counters.Statistics.DataFramesSent > 0 && counters.Statistics.DataFrameBytesSent.QuadPart > 0);
  CHECK(Query(&Pair->Here, TDI_QUERY_CONNECTION_INFO, &info, sizeof info, STATUS_SUCCESS) == sizeof info);
  CHECK(info.State == 1 && info.TransmittedTsdus > 0 && info.ReceivedTsdus == 0 && info.SendBufferSize > 0);
  CHECK(Query(&Pair->Here, TDI_QUERY_CONNECTION_INFO, &info, 7, STATUS_BUFFER_OVERFLOW) == 7);
  Query(&Pair->Client, TDI_QUERY_CONNECTION_INFO, &info, sizeof info, STATUS_INVALID_DEVICE_REQUEST);
}

static NTSTATUS NTAPI SeesPending(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  UNREFERENCED_PARAMETER(DeviceObject);
  *(PBOOLEAN)Context = Irp->PendingReturned;
  return STATUS_SUCCESS;
}

/* What a driver learns of an IRP that it passes on, what ends an IRP that was reused, a time-out of 0, and what a
 * disconnect returns. */
static void Stacks(PPAIR Pair) {
  SUBMITTED submitted, listen;
  TDI_CONNECTION_INFORMATION information;
  TA_IP_ADDRESS address;
  LARGE_INTEGER none;
  char buffer[10];
  BOOLEAN pending = FALSE;
  ULONG taken;
  PMDL mdl = Memory(buffer, sizeof buffer);
  PIRP irp;
  /* The peer may not have seen the end of the last connection. */
  Disconnect(&Pair->There, TDI_DISCONNECT_ABORT);
  /* A time-out of 0 is that of the transport. */
  SubmitListen(&Pair->There, &listen, 0);
  none.QuadPart = 0;
  LocalAddress(&address, Pair->Port);
  memset(&information, 0, sizeof information);
  information.RemoteAddress = &address;
  information.RemoteAddressLength = sizeof address;
  irp = NewIrp(&Pair->Here, &submitted);
  TdiBuildConnect(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, &none, &information, NULL);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  /* The lower location has no routine, so the upper one is marked for it. */
  irp = IoAllocateIrp(2, FALSE);
  KeInitializeEvent(&submitted.Event, NotificationEvent, FALSE);
  irp->UserEvent = &submitted.Event;
  irp->UserIosb = &submitted.Status;
  submitted.Irp = irp;
  submitted.Mdl = mdl;
  IoSetCompletionRoutine(irp, SeesPending, &pending, TRUE, TRUE, TRUE);
  IoSetNextIrpStackLocation(irp);
  TdiBuildReceive(irp, Pair->There.Device, Pair->There.File, NULL, NULL, mdl, 0, sizeof buffer);
  Submit(&Pair->There, &submitted);
  CHECK_STATUS(submitted.First, STATUS_PENDING);
  CHECK_STATUS(Send(&Pair->Here, "data", 4, 0, &taken), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&submitted), STATUS_SUCCESS);
  CHECK(pending);
  /* A reused IRP of IoAllocateIrp is freed at its end. A leak checker finds one that is not. */
  irp = IoAllocateIrp(Pair->Here.Device->StackSize, FALSE);
  IoReuseIrp(irp, STATUS_SUCCESS);
  KeInitializeEvent(&submitted.Event, NotificationEvent, FALSE);
  irp->UserEvent = &submitted.Event;
  irp->UserIosb = &submitted.Status;
  submitted.Irp = irp;
  submitted.Mdl = NULL;
  /* No peer sends user data. */
  information.UserDataLength = 77;
  information.OptionsLength = 77;
  TdiBuildDisconnect(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, NULL, TDI_DISCONNECT_ABORT, NULL,
                     &information);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  CHECK(information.UserDataLength == 0 && information.OptionsLength == 0);
}

/* The address of a connection is that of its end. */
static void AddressOfConnection(PPAIR Pair) {
  OPENED alone;
  SUBMITTED listen;
  UCHAR answer[100];
  TA_IP_ADDRESS found;
  Disconnect(&Pair->There, TDI_DISCONNECT_ABORT);
  SubmitListen(&Pair->There, &listen, 0);
  CHECK(PortOf(&Pair->There) == Pair->Port);
  CHECK_STATUS(Connect(&Pair->Here, Pair->Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  CHECK(PortOf(&Pair->There) == Pair->Port);
  Query(&Pair->Here, TDI_QUERY_ADDRESS_INFO, answer, sizeof answer, STATUS_SUCCESS);
  memcpy(&found, answer + FIELD_OFFSET(TDI_ADDRESS_INFO, Address), sizeof found);
  CHECK(found.Address[0].Address[0].in_addr == 0x0100007F);
  CHECK_STATUS(Disconnect(&Pair->Here, TDI_DISCONNECT_ABORT), STATUS_SUCCESS);
  OpenConnection(&alone, NULL);
  Query(&alone, TDI_QUERY_ADDRESS_INFO, answer, sizeof answer, STATUS_ADDRESS_NOT_ASSOCIATED);
  CloseFile(&alone);
}

/* Requests on the wrong file or with wrong parameters complete with a status. */
static void Misuse(PPAIR Pair) {
  OPENED control, other;
  SUBMITTED submitted;
  TA_IP_ADDRESS address;
  PIRP irp;
  LARGE_INTEGER now;
  KEVENT event;
  PVOID object;
  /* TDI-STATUS-02: a status that is not zero need not be an error. */
  CHECK(NT_SUCCESS(STATUS_PENDING) && !NT_ERROR(STATUS_PENDING));
  CHECK(NT_WARNING(STATUS_BUFFER_OVERFLOW) && !NT_SUCCESS(STATUS_BUFFER_OVERFLOW));
  CHECK(NT_ERROR(STATUS_INVALID_CONNECTION) && !NT_INFORMATION(STATUS_INVALID_CONNECTION));
  CHECK_STATUS(OpenFile(&control, NULL, NULL, 0, 0), STATUS_SUCCESS);
  CHECK_STATUS(Associate(&control, &Pair->Client), STATUS_INVALID_DEVICE_REQUEST);
  CHECK_STATUS(Associate(&Pair->Here, &Pair->Client), STATUS_ADDRESS_ALREADY_ASSOCIATED);
  CHECK_STATUS(SetHandler(&control, TDI_EVENT_ERROR, NULL, NULL), STATUS_INVALID_DEVICE_REQUEST);
  CHECK_STATUS(SetHandler(&Pair->Client, 99, NULL, NULL), STATUS_INVALID_PARAMETER);
  CHECK_STATUS(SetHandler(&Pair->Client, -1, NULL, NULL), STATUS_INVALID_PARAMETER);
  irp = NewIrp(&control, &submitted);
  TdiBuildAction(irp, control.Device, control.File, NULL, NULL, NULL);
  CHECK_STATUS(Run(&control, &submitted), STATUS_NOT_SUPPORTED);
  irp = NewIrp(&control, &submitted);
  TdiBuildQueryInformation(irp, control.Device, control.File, NULL, NULL, TDI_QUERY_BROADCAST_ADDRESS, NULL);
  CHECK_STATUS(Run(&control, &submitted), STATUS_NOT_IMPLEMENTED);
  irp = NewIrp(&control, &submitted);
  TdiBuildQueryInformation(irp, control.Device, control.File, NULL, NULL, TDI_QUERY_PROVIDER_INFO, NULL);
  CHECK_STATUS(Run(&control, &submitted), STATUS_BUFFER_OVERFLOW);
  CHECK(submitted.Status.Information == 0);
  irp = NewIrp(&control, &submitted);
  IoGetNextIrpStackLocation(irp)->FileObject = NULL;
  CHECK(!NT_SUCCESS(Run(&control, &submitted)));
  /* Both extended attributes, an address without an IP address, and an address that is open. */
  CHECK_STATUS(OpenFile(&other, "SomethingElse", "", 0, 0), STATUS_NONEXISTENT_EA_ENTRY);
  CHECK_STATUS(OpenFile(&other, TdiConnectionContext, "abc", 3, 0), STATUS_INVALID_PARAMETER);
  memset(&address, 0, sizeof address);
  CHECK_STATUS(OpenFile(&other, TdiTransportAddress, &address, sizeof address, 0), STATUS_INVALID_ADDRESS_COMPONENT);
  CHECK_STATUS(OpenAddress(&other, Pair->Port, 0), STATUS_SHARING_VIOLATION);
  CHECK_STATUS(ZwClose(NULL), STATUS_INVALID_HANDLE);
  CHECK_STATUS(ObReferenceObjectByHandle((HANDLE)3, 0, NULL, KernelMode, &object, NULL), STATUS_INVALID_HANDLE);
  CloseFile(&control);
  /* A wait that expires, and events of both types. */
  now.QuadPart = 0;
  KeInitializeEvent(&event, SynchronizationEvent, FALSE);
  CHECK_STATUS(KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, &now), STATUS_TIMEOUT);
  now.QuadPart = -10000;
  CHECK_STATUS(KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, &now), STATUS_TIMEOUT);
  CHECK(KeSetEvent(&event, 0, FALSE) == 0);
  CHECK_STATUS(KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, NULL), STATUS_SUCCESS);
  CHECK(KeReadStateEvent(&event) == 0);
  KeInitializeEvent(&event, NotificationEvent, TRUE);
  CHECK_STATUS(KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, NULL), STATUS_SUCCESS);
  CHECK(KeReadStateEvent(&event) != 0 && KeResetEvent(&event) != 0);
  KeClearEvent(&event);
  CHECK(KeReadStateEvent(&event) == 0);
}

/* A close completes the sends that wait, and their memory is the client's again: it is freed here. 003.59, 003.60,
 * 003.63 */
static void CloseWithSends(PPAIR Pair) {
  static SUBMITTED sends[300];
  OPENED connection;
  SUBMITTED listen;
  UCHAR *data[300];
  ULONG at, cancelled = 0;
  SubmitListen(&Pair->There, &listen, 0);
  OpenConnection(&connection, NULL);
  CHECK_STATUS(Associate(&connection, &Pair->Client), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&connection, Pair->Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  for (at = 0; at < 300; at++) {
    data[at] = malloc(60000);
    memset(data[at], (int)at, 60000);
    SubmitSend(&connection, &sends[at], data[at], 60000, 0);
  }
  CloseFile(&connection);
  for (at = 0; at < 300; at++) {
    CHECK(KeReadStateEvent(&sends[at].Event) != 0);
    free(data[at]);
    if (Finish(&sends[at]) == STATUS_CANCELLED)
      cancelled++;
    else
      CHECK(sends[at].Status.Status == STATUS_SUCCESS && sends[at].Status.Information == 60000);
  }
  CHECK(cancelled > 0);
  /* The peer may have seen the end already. */
  Disconnect(&Pair->There, 0);
}

/* As on Windows, memory that MmProbeAndLockPages has locked is released with the IRP. */
static void LockedMemory(PPAIR Pair) {
  SUBMITTED listen, submitted;
  PIRP irp;
  PMDL mdl;
  SubmitListen(&Pair->There, &listen, 0);
  CHECK_STATUS(Connect(&Pair->Here, Pair->Port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  irp = NewIrp(&Pair->Here, &submitted);
  mdl = IoAllocateMdl(Hello, 5, FALSE, FALSE, irp);
  MmProbeAndLockPages(mdl, KernelMode, IoReadAccess);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, mdl, 0, 5);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  Expect(&Pair->There, "hello");
}

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  ConnectPair(&pair);
  Routines(&pair);
  Switches(&pair);
  Cancel(&pair);
  Receives(&pair);
  Queries(&pair);
  Stacks(&pair);
  AddressOfConnection(&pair);
  Misuse(&pair);
  CloseWithSends(&pair);
  LockedMemory(&pair);
  ClosePair(&pair);
  printf("requests over %s: as Windows completes them\n", DeviceText);
  return 0;
}
