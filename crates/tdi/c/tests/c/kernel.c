/* What clients use of the kernel beside requests: lists, spin locks, IRQL, cancel routines, DPCs, timers, work items and
 * threads, descriptions of memory, and the names that TDI sources use. */
#include "client.h"

static void Await(PVOID Object) {
  LARGE_INTEGER limit;
  limit.QuadPart = -60LL * 10000000;
  CHECK_STATUS(KeWaitForSingleObject(Object, Executive, KernelMode, FALSE, &limit), STATUS_SUCCESS);
}

static LARGE_INTEGER Milliseconds(LONG Count) {
  LARGE_INTEGER time;
  time.QuadPart = Count * -10000LL;
  return time;
}

/* An entry of a list that threads share. */
typedef struct _ENTRY {
  LIST_ENTRY Link;
  ULONG Number;
} ENTRY, *PENTRY;

#define ENTRIES 20000
#define THREADS 4

static LIST_ENTRY List;
static KSPIN_LOCK ListLock, SumLock;
static ULONG Sum, Taken;

static VOID NTAPI TakeEntries(PVOID Context) {
  PLIST_ENTRY link;
  KIRQL irql;
  UNREFERENCED_PARAMETER(Context);
  CHECK(KeGetCurrentIrql() == PASSIVE_LEVEL);
  while ((link = ExInterlockedRemoveHeadList(&List, &ListLock)) != NULL) {
    PENTRY entry = CONTAINING_RECORD(link, ENTRY, Link);
    KeAcquireSpinLock(&SumLock, &irql);
    CHECK(irql == PASSIVE_LEVEL && KeGetCurrentIrql() == DISPATCH_LEVEL);
    Sum += entry->Number;
    Taken++;
    KeReleaseSpinLock(&SumLock, irql);
  }
  PsTerminateSystemThread(STATUS_SUCCESS);
  CHECK(!"it has ended");
}

static HANDLE StartThread(PKSTART_ROUTINE Routine, PVOID Context) {
  HANDLE thread;
  CHECK_STATUS(PsCreateSystemThread(&thread, THREAD_ALL_ACCESS, NULL, NULL, NULL, Routine, Context), STATUS_SUCCESS);
  return thread;
}

/* Waits for the end of a thread, and closes it. */
static void Join(HANDLE Thread) {
  PVOID object;
  CHECK_STATUS(ObReferenceObjectByHandle(Thread, 0, *PsThreadType, KernelMode, &object, NULL), STATUS_SUCCESS);
  Await(object);
  /* It stays signaled. */
  Await(object);
  CHECK_STATUS(ZwClose(Thread), STATUS_SUCCESS);
  ObDereferenceObject(object);
}

/* Threads share a list by spin locks, and end by PsTerminateSystemThread. */
static void ListsAndThreads(void) {
  static ENTRY entries[ENTRIES];
  HANDLE threads[THREADS];
  PVOID object;
  ULONG number;
  InitializeListHead(&List);
  KeInitializeSpinLock(&ListLock);
  KeInitializeSpinLock(&SumLock);
  for (number = 0; number < ENTRIES; number++) {
    entries[number].Number = number;
    ExInterlockedInsertTailList(&List, &entries[number].Link, &ListLock);
  }
  CHECK(!IsListEmpty(&List) && List.Flink == &entries[0].Link && List.Blink == &entries[ENTRIES - 1].Link);
  for (number = 0; number < THREADS; number++)
    threads[number] = StartThread(TakeEntries, NULL);
  CHECK_STATUS(ObReferenceObjectByHandle(threads[0], 0, *IoFileObjectType, KernelMode, &object, NULL),
               STATUS_OBJECT_TYPE_MISMATCH);
  for (number = 0; number < THREADS; number++)
    Join(threads[number]);
  CHECK(IsListEmpty(&List) && Taken == ENTRIES && Sum == ENTRIES / 2 * (ENTRIES - 1));
  InsertTailList(&List, &entries[0].Link);
  InsertHeadList(&List, &entries[1].Link);
  CHECK(ExInterlockedInsertHeadList(&List, &entries[2].Link, &ListLock) == &entries[1].Link);
  CHECK(RemoveTailList(&List) == &entries[0].Link && RemoveHeadList(&List) == &entries[2].Link);
  CHECK(RemoveEntryList(&entries[1].Link) && IsListEmpty(&List));
}

/* Notifications reach every thread that waits. */
static VOID NTAPI WaitForEvent(PVOID Context) {
  Await(Context);
}

static void Waiters(void) {
  HANDLE threads[THREADS];
  KEVENT event;
  LARGE_INTEGER pause = Milliseconds(50);
  ULONG at;
  KeInitializeEvent(&event, NotificationEvent, FALSE);
  for (at = 0; at < THREADS; at++)
    threads[at] = StartThread(WaitForEvent, &event);
  /* They wait already, or find it signaled. */
  KeDelayExecutionThread(KernelMode, FALSE, &pause);
  CHECK(KeSetEvent(&event, IO_NO_INCREMENT, FALSE) == 0);
  for (at = 0; at < THREADS; at++)
    Join(threads[at]);
  CHECK(KeReadStateEvent(&event) != 0);
}

static void Irql(void) {
  KIRQL first, second;
  CHECK(KeGetCurrentIrql() == PASSIVE_LEVEL);
  KeRaiseIrql(APC_LEVEL, &first);
  KeRaiseIrql(DISPATCH_LEVEL, &second);
  CHECK(first == PASSIVE_LEVEL && second == APC_LEVEL && KeGetCurrentIrql() == DISPATCH_LEVEL);
  KeAcquireSpinLockAtDpcLevel(&ListLock);
  KeReleaseSpinLockFromDpcLevel(&ListLock);
  KeLowerIrql(second);
  CHECK(KeGetCurrentIrql() == APC_LEVEL);
  KeLowerIrql(first);
  CHECK(KeGetCurrentIrql() == PASSIVE_LEVEL);
}

/* What a DPC has seen. */
typedef struct _CALLED {
  KEVENT Event;
  LONG Times;
  PVOID First, Second;
} CALLED, *PCALLED;

static VOID NTAPI OnDpc(PKDPC Dpc, PVOID DeferredContext, PVOID SystemArgument1, PVOID SystemArgument2) {
  PCALLED called = (PCALLED)DeferredContext;
  CHECK(Dpc != NULL && KeGetCurrentIrql() == DISPATCH_LEVEL);
  called->First = SystemArgument1;
  called->Second = SystemArgument2;
  called->Times++;
  KeSetEvent(&called->Event, IO_NO_INCREMENT, FALSE);
}

static void DpcsAndTimers(void) {
  CALLED called;
  KDPC dpc;
  KTIMER timer;
  LARGE_INTEGER before, after, limit;
  memset(&called, 0, sizeof called);
  KeInitializeEvent(&called.Event, SynchronizationEvent, FALSE);
  KeInitializeDpc(&dpc, OnDpc, &called);
  CHECK(KeInsertQueueDpc(&dpc, &called, &dpc));
  Await(&called.Event);
  KeFlushQueuedDpcs();
  CHECK(called.Times == 1 && called.First == &called && called.Second == &dpc);
  CHECK(!KeRemoveQueueDpc(&dpc));

  /* A timer that a thread waits for, twice. */
  KeInitializeTimer(&timer);
  CHECK(!KeReadStateTimer(&timer));
  KeQuerySystemTime(&before);
  CHECK(!KeSetTimer(&timer, Milliseconds(30), NULL));
  Await(&timer);
  Await(&timer);
  KeQuerySystemTime(&after);
  CHECK(KeReadStateTimer(&timer) && after.QuadPart - before.QuadPart >= 29 * 10000);
  /* A timer that is set again waits for the later time, and a cancelled one does nothing. */
  CHECK(!KeSetTimer(&timer, Milliseconds(1000000), &dpc));
  CHECK(!KeReadStateTimer(&timer));
  CHECK(KeSetTimer(&timer, Milliseconds(1), &dpc));
  Await(&called.Event);
  CHECK(called.Times == 2 && !KeCancelTimer(&timer));
  CHECK(!KeSetTimer(&timer, Milliseconds(20), &dpc) && KeCancelTimer(&timer) && !KeCancelTimer(&timer));
  limit = Milliseconds(60);
  CHECK_STATUS(KeWaitForSingleObject(&called.Event, Executive, KernelMode, FALSE, &limit), STATUS_TIMEOUT);
  /* A periodic timer, whose wait resets it. */
  KeInitializeTimerEx(&timer, SynchronizationTimer);
  KeSetTimerEx(&timer, Milliseconds(1), 5, &dpc);
  Await(&timer);
  Await(&timer);
  Await(&timer);
  CHECK(KeCancelTimer(&timer));
  KeFlushQueuedDpcs();
  CHECK(called.Times >= 5);
}

static KEVENT Worked, Inner;

static VOID NTAPI OnWork(PVOID Parameter) {
  CHECK(KeGetCurrentIrql() == PASSIVE_LEVEL);
  KeSetEvent((PKEVENT)Parameter, IO_NO_INCREMENT, FALSE);
}

/* Waits for a work item that it queues. */
static VOID NTAPI OnIoWork(PDEVICE_OBJECT DeviceObject, PVOID Context) {
  WORK_QUEUE_ITEM item;
  ExInitializeWorkItem(&item, OnWork, &Inner);
  ExQueueWorkItem(&item, DelayedWorkQueue);
  Await(&Inner);
  CHECK(DeviceObject != NULL);
  IoFreeWorkItem((PIO_WORKITEM)Context);
  KeSetEvent(&Worked, IO_NO_INCREMENT, FALSE);
}

static void WorkItems(PDEVICE_OBJECT Device) {
  PIO_WORKITEM item = IoAllocateWorkItem(Device);
  KeInitializeEvent(&Worked, SynchronizationEvent, FALSE);
  KeInitializeEvent(&Inner, SynchronizationEvent, FALSE);
  IoQueueWorkItem(item, OnIoWork, DelayedWorkQueue, item);
  Await(&Worked);
}

static LONG CancelCalls;

static VOID NTAPI OnCancel(PDEVICE_OBJECT DeviceObject, PIRP Irp) {
  UNREFERENCED_PARAMETER(DeviceObject);
  CHECK(KeGetCurrentIrql() == DISPATCH_LEVEL && Irp->Cancel && Irp->CancelRoutine == NULL);
  IoReleaseCancelSpinLock(Irp->CancelIrql);
  CancelCalls++;
}

/* A client that holds an IRP sets a cancel routine on it, as a driver does. */
static void CancelRoutines(void) {
  PIRP irp = IoAllocateIrp(2, FALSE);
  KIRQL irql;
  CHECK(!IoCancelIrp(irp));
  IoReuseIrp(irp, STATUS_SUCCESS);
  IoAcquireCancelSpinLock(&irql);
  CHECK(IoSetCancelRoutine(irp, OnCancel) == NULL);
  IoReleaseCancelSpinLock(irql);
  CHECK(IoCancelIrp(irp) && CancelCalls == 1 && KeGetCurrentIrql() == PASSIVE_LEVEL);
  CHECK(!IoCancelIrp(irp));
  CHECK(IoSetCancelRoutine(irp, OnCancel) == NULL && IoSetCancelRoutine(irp, NULL) == OnCancel);
  CHECK(!IoCancelIrp(irp) && CancelCalls == 1);
  IoFreeIrp(irp);
}

/* A description in memory of the client's is sent like one of IoAllocateMdl. */
static void Descriptions(PPAIR Pair) {
  char text[] = "described";
  PMDL mdl = malloc(MmSizeOfMdl(text, sizeof text));
  SUBMITTED submitted;
  PIRP irp;
  MmInitializeMdl(mdl, text, 9);
  CHECK(MmGetMdlVirtualAddress(mdl) == text && MmGetMdlByteCount(mdl) == 9);
  MmBuildMdlForNonPagedPool(mdl);
  CHECK(MmGetSystemAddressForMdlSafe(mdl, NormalPagePriority) == text);
  irp = NewIrp(&Pair->Here, &submitted);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, mdl, 0, 9);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  Expect(&Pair->There, "described");
  free(mdl);
}

/* Datagrams complete with the status that the service flags promise. */
static void Datagrams(PPAIR Pair) {
  SUBMITTED submitted;
  TDI_CONNECTION_INFORMATION information;
  char data[4] = "abc";
  PMDL mdl = IoAllocateMdl(data, sizeof data, FALSE, FALSE, NULL);
  PIRP irp = NewIrp(&Pair->Server, &submitted);
  MmBuildMdlForNonPagedPool(mdl);
  memset(&information, 0, sizeof information);
  TdiBuildSendDatagram(irp, Pair->Server.Device, Pair->Server.File, NULL, NULL, mdl, 4, &information);
  CHECK_STATUS(Run(&Pair->Server, &submitted), STATUS_INVALID_DEVICE_REQUEST);
  irp = NewIrp(&Pair->Server, &submitted);
  TdiBuildReceiveDatagram(irp, Pair->Server.Device, Pair->Server.File, NULL, NULL, mdl, 4, &information, &information,
                          TDI_RECEIVE_NORMAL);
  CHECK_STATUS(Run(&Pair->Server, &submitted), STATUS_INVALID_DEVICE_REQUEST);
  IoFreeMdl(mdl);
}

/* The default handlers do what the transport does without a handler. */
static void DefaultHandlers(PPAIR Pair) {
  OPENED refused;
  ULONG taken;
  PIRP irp = NULL;
  CHECK_STATUS(TdiDefaultReceiveHandler(NULL, NULL, 0, 1, 1, &taken, NULL, &irp), STATUS_DATA_NOT_ACCEPTED);
  CHECK_STATUS(TdiDefaultDisconnectHandler(NULL, NULL, 0, NULL, 0, NULL, 0), STATUS_SUCCESS);
  CHECK_STATUS(TdiDefaultErrorHandler(NULL, STATUS_SUCCESS), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_CONNECT, (PVOID)TdiDefaultConnectHandler, NULL), STATUS_SUCCESS);
  CHECK_STATUS(SetHandler(&Pair->Server, TDI_EVENT_RECEIVE, (PVOID)TdiDefaultReceiveHandler, NULL), STATUS_SUCCESS);
  OpenConnection(&refused, NULL);
  CHECK_STATUS(Associate(&refused, &Pair->Client), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&refused, Pair->Port), STATUS_REMOTE_NOT_LISTENING);
  CloseFile(&refused);
  CHECK_STATUS(Send(&Pair->Here, "held", 4, 0, &taken), STATUS_SUCCESS);
  Expect(&Pair->There, "held");
  CHECK_STATUS(TdiMapUserRequest(Pair->Server.Device, NULL, NULL), STATUS_NOT_IMPLEMENTED);
}

static void Values(void) {
  PVOID pointer = NULL;
  CHECK(RtlUshortByteSwap(0x1234) == 0x3412 && RtlUlongByteSwap(0x12345678) == 0x78563412);
  CHECK(RtlCompareMemory("abcd", "abXd", 4) == 2 && RtlCompareMemory("same", "same", 4) == 4);
  CHECK(InterlockedExchangePointer(&pointer, &List) == NULL && pointer == &List);
  CHECK((FILE_READ_EA | FILE_WRITE_EA) == 0x18 && FILE_ALL_ACCESS == 0x1F01FF);
  CHECK(!NT_SUCCESS(STATUS_NO_MEMORY) && !NT_SUCCESS(STATUS_INVALID_USER_BUFFER));
  ASSERT(pointer != NULL);
  KdPrintEx((DPFLTR_IHVDRIVER_ID, DPFLTR_INFO_LEVEL, "a message\n"));
}

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  Values();
  Irql();
  ListsAndThreads();
  Waiters();
  DpcsAndTimers();
  CancelRoutines();
  ConnectPair(&pair);
  WorkItems(pair.Here.Device);
  Descriptions(&pair);
  Datagrams(&pair);
  DefaultHandlers(&pair);
  ClosePair(&pair);
  printf("kernel over %s: lists, locks, timers, threads\n", DeviceText);
  return 0;
}
