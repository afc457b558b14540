/* The part of Windows' driver interface that TDI clients use: requests (IRPs), descriptors of memory (MDLs), events,
 * files, spin locks, DPCs, timers, work items and threads. Names, values, orders of parameters and the layout of structures are those of 64-bit Windows.
 *
 * Structures are real: the transport reads a request from the IRP's next stack location, so that a client that fills
 * it by hand, without the macros of tdikrnl.h, works as well. */
#ifndef SMBDIRECT_WDM_H
#define SMBDIRECT_WDM_H

#include <ntdef.h>
#include <ntstatus.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads: KeGetCurrentIrql returns DISPATCH_LEVEL in event handlers and completion routines. */
typedef UCHAR KIRQL, *PKIRQL;
typedef CCHAR KPROCESSOR_MODE;
typedef LONG KPRIORITY;
typedef ULONG_PTR KSPIN_LOCK, *PKSPIN_LOCK;
typedef ULONG DEVICE_TYPE;
#define PASSIVE_LEVEL 0
#define APC_LEVEL 1
#define DISPATCH_LEVEL 2

typedef enum _MODE { KernelMode, UserMode, MaximumMode } MODE;
typedef enum _EVENT_TYPE { NotificationEvent, SynchronizationEvent } EVENT_TYPE;
typedef enum _LOCK_OPERATION { IoReadAccess, IoWriteAccess, IoModifyAccess } LOCK_OPERATION;
typedef enum _KWAIT_REASON {
  Executive,
  FreePage,
  PageIn,
  PoolAllocation,
  DelayExecution,
  Suspended,
  UserRequest
} KWAIT_REASON;
typedef enum _MM_PAGE_PRIORITY {
  LowPagePriority,
  NormalPagePriority = 16,
  HighPagePriority = 32
} MM_PAGE_PRIORITY;
typedef enum _POOL_TYPE { NonPagedPool, PagedPool } POOL_TYPE;

typedef struct _DISPATCHER_HEADER {
  UCHAR Type;
  UCHAR Signalling;
  UCHAR Size;
  UCHAR Reserved;
  LONG SignalState;
  LIST_ENTRY WaitListHead;
} DISPATCHER_HEADER, *PDISPATCHER_HEADER;

typedef struct _KEVENT {
  DISPATCHER_HEADER Header;
} KEVENT, *PKEVENT, *PRKEVENT;

typedef struct _IO_STATUS_BLOCK {
  __extension__ union {
    NTSTATUS Status;
    PVOID Pointer;
  };
  ULONG_PTR Information;
} IO_STATUS_BLOCK, *PIO_STATUS_BLOCK;

struct _KDPC;
typedef VOID(NTAPI KDEFERRED_ROUTINE)(struct _KDPC *Dpc, PVOID DeferredContext, PVOID SystemArgument1,
                                      PVOID SystemArgument2);
typedef KDEFERRED_ROUTINE *PKDEFERRED_ROUTINE;

typedef struct _KDPC {
  UCHAR Type;
  UCHAR Importance;
  volatile USHORT Number;
  LIST_ENTRY DpcListEntry;
  PKDEFERRED_ROUTINE DeferredRoutine;
  PVOID DeferredContext;
  PVOID SystemArgument1;
  PVOID SystemArgument2;
  volatile PVOID DpcData;
} KDPC, *PKDPC, *PRKDPC;

typedef enum _TIMER_TYPE { NotificationTimer, SynchronizationTimer } TIMER_TYPE;

typedef struct _KTIMER {
  DISPATCHER_HEADER Header;
  ULARGE_INTEGER DueTime;
  LIST_ENTRY TimerListEntry;
  struct _KDPC *Dpc;
  ULONG Processor;
  ULONG Period;
} KTIMER, *PKTIMER, *PRKTIMER;

typedef enum _WORK_QUEUE_TYPE { CriticalWorkQueue, DelayedWorkQueue, HyperCriticalWorkQueue } WORK_QUEUE_TYPE;
typedef VOID(NTAPI WORKER_THREAD_ROUTINE)(PVOID Parameter);
typedef WORKER_THREAD_ROUTINE *PWORKER_THREAD_ROUTINE;

typedef struct _WORK_QUEUE_ITEM {
  LIST_ENTRY List;
  PWORKER_THREAD_ROUTINE WorkerRoutine;
  volatile PVOID Parameter;
} WORK_QUEUE_ITEM, *PWORK_QUEUE_ITEM;

typedef VOID(NTAPI KSTART_ROUTINE)(PVOID StartContext);
typedef KSTART_ROUTINE *PKSTART_ROUTINE;
typedef struct _CLIENT_ID *PCLIENT_ID;

struct _IRP;
struct _DEVICE_OBJECT;
struct _FILE_OBJECT;
typedef struct _DRIVER_OBJECT *PDRIVER_OBJECT;
typedef struct _OBJECT_TYPE *POBJECT_TYPE;
typedef struct _EPROCESS *PEPROCESS;
typedef struct _ETHREAD *PETHREAD;
typedef struct _VPB *PVPB;
typedef struct _IO_TIMER *PIO_TIMER;
typedef struct _SECTION_OBJECT_POINTERS *PSECTION_OBJECT_POINTERS;
typedef struct _IO_COMPLETION_CONTEXT *PIO_COMPLETION_CONTEXT;
typedef struct _IO_SECURITY_CONTEXT *PIO_SECURITY_CONTEXT;

typedef NTSTATUS(NTAPI IO_COMPLETION_ROUTINE)(struct _DEVICE_OBJECT *DeviceObject, struct _IRP *Irp, PVOID Context);
typedef IO_COMPLETION_ROUTINE *PIO_COMPLETION_ROUTINE;
typedef VOID(NTAPI DRIVER_CANCEL)(struct _DEVICE_OBJECT *DeviceObject, struct _IRP *Irp);
typedef DRIVER_CANCEL *PDRIVER_CANCEL;
typedef VOID(NTAPI *PIO_APC_ROUTINE)(PVOID ApcContext, PIO_STATUS_BLOCK IoStatusBlock, ULONG Reserved);

typedef struct _MDL {
  struct _MDL *Next;
  CSHORT Size;
  CSHORT MdlFlags;
  struct _EPROCESS *Process;
  PVOID MappedSystemVa;
  PVOID StartVa;
  ULONG ByteCount;
  ULONG ByteOffset;
} MDL, *PMDL, *PMDLX;

#define MDL_MAPPED_TO_SYSTEM_VA 0x0001
#define MDL_PAGES_LOCKED 0x0002
#define MDL_SOURCE_IS_NONPAGED_POOL 0x0004
#define MDL_ALLOCATED_FIXED_SIZE 0x0008
#define MDL_PARTIAL 0x0010
#define MDL_PARTIAL_HAS_BEEN_MAPPED 0x0020

typedef struct _DEVICE_OBJECT {
  CSHORT Type;
  USHORT Size;
  LONG ReferenceCount;
  PDRIVER_OBJECT DriverObject;
  struct _DEVICE_OBJECT *NextDevice;
  struct _DEVICE_OBJECT *AttachedDevice;
  struct _IRP *CurrentIrp;
  PIO_TIMER Timer;
  ULONG Flags;
  ULONG Characteristics;
  volatile PVPB Vpb;
  PVOID DeviceExtension;
  DEVICE_TYPE DeviceType;
  CCHAR StackSize;
  /* The rest is for drivers. */
  PVOID Reserved[31];
} DEVICE_OBJECT, *PDEVICE_OBJECT;

typedef struct _FILE_OBJECT {
  CSHORT Type;
  CSHORT Size;
  PDEVICE_OBJECT DeviceObject;
  PVPB Vpb;
  PVOID FsContext;
  PVOID FsContext2; /* TDI_TRANSPORT_ADDRESS_FILE, TDI_CONNECTION_FILE or TDI_CONTROL_CHANNEL_FILE */
  PSECTION_OBJECT_POINTERS SectionObjectPointer;
  PVOID PrivateCacheMap;
  NTSTATUS FinalStatus;
  struct _FILE_OBJECT *RelatedFileObject;
  BOOLEAN LockOperation;
  BOOLEAN DeletePending;
  BOOLEAN ReadAccess;
  BOOLEAN WriteAccess;
  BOOLEAN DeleteAccess;
  BOOLEAN SharedRead;
  BOOLEAN SharedWrite;
  BOOLEAN SharedDelete;
  ULONG Flags;
  UNICODE_STRING FileName;
  LARGE_INTEGER CurrentByteOffset;
  volatile ULONG Waiters;
  volatile ULONG Busy;
  PVOID LastLock;
  KEVENT Lock;
  KEVENT Event;
  volatile PIO_COMPLETION_CONTEXT CompletionContext;
  KSPIN_LOCK IrpListLock;
  LIST_ENTRY IrpList;
  volatile PVOID FileObjectExtension;
} FILE_OBJECT, *PFILE_OBJECT;

typedef struct _IO_STACK_LOCATION {
  UCHAR MajorFunction;
  UCHAR MinorFunction;
  UCHAR Flags;
  UCHAR Control;
  union {
    struct {
      PIO_SECURITY_CONTEXT SecurityContext;
      ULONG Options;
      USHORT POINTER_ALIGNMENT FileAttributes;
      USHORT ShareAccess;
      ULONG POINTER_ALIGNMENT EaLength;
    } Create;
    struct {
      ULONG Length;
      ULONG POINTER_ALIGNMENT Key;
      ULONG Flags;
      LARGE_INTEGER ByteOffset;
    } Read;
    struct {
      ULONG Length;
      ULONG POINTER_ALIGNMENT Key;
      ULONG Flags;
      LARGE_INTEGER ByteOffset;
    } Write;
    struct {
      ULONG OutputBufferLength;
      ULONG POINTER_ALIGNMENT InputBufferLength;
      ULONG POINTER_ALIGNMENT IoControlCode;
      PVOID Type3InputBuffer;
    } DeviceIoControl;
    struct {
      PVOID Argument1;
      PVOID Argument2;
      PVOID Argument3;
      PVOID Argument4;
    } Others;
  } Parameters;
  PDEVICE_OBJECT DeviceObject;
  PFILE_OBJECT FileObject;
  PIO_COMPLETION_ROUTINE CompletionRoutine;
  PVOID Context;
} IO_STACK_LOCATION, *PIO_STACK_LOCATION;

#define SL_PENDING_RETURNED 0x01
#define SL_ERROR_RETURNED 0x02
#define SL_INVOKE_ON_CANCEL 0x20
#define SL_INVOKE_ON_SUCCESS 0x40
#define SL_INVOKE_ON_ERROR 0x80

#define IRP_MJ_CREATE 0x00
#define IRP_MJ_CLOSE 0x02
#define IRP_MJ_READ 0x03
#define IRP_MJ_WRITE 0x04
#define IRP_MJ_DEVICE_CONTROL 0x0e
#define IRP_MJ_INTERNAL_DEVICE_CONTROL 0x0f
#define IRP_MJ_CLEANUP 0x12

typedef struct _KDEVICE_QUEUE_ENTRY {
  LIST_ENTRY DeviceListEntry;
  ULONG SortKey;
  BOOLEAN Inserted;
} KDEVICE_QUEUE_ENTRY, *PKDEVICE_QUEUE_ENTRY;

typedef struct _KAPC {
  PVOID Reserved[11];
} KAPC, *PKAPC;

typedef struct _IRP {
  CSHORT Type;
  USHORT Size;
  struct _MDL *MdlAddress;
  ULONG Flags;
  union {
    struct _IRP *MasterIrp;
    volatile LONG IrpCount;
    PVOID SystemBuffer;
  } AssociatedIrp;
  LIST_ENTRY ThreadListEntry;
  IO_STATUS_BLOCK IoStatus;
  KPROCESSOR_MODE RequestorMode;
  BOOLEAN PendingReturned;
  CHAR StackCount;
  CHAR CurrentLocation;
  BOOLEAN Cancel;
  KIRQL CancelIrql;
  CCHAR ApcEnvironment;
  UCHAR AllocationFlags;
  PIO_STATUS_BLOCK UserIosb;
  PKEVENT UserEvent;
  union {
    struct {
      __extension__ union {
        PIO_APC_ROUTINE UserApcRoutine;
        PVOID IssuingProcess;
      };
      PVOID UserApcContext;
    } AsynchronousParameters;
    LARGE_INTEGER AllocationSize;
  } Overlay;
  volatile PDRIVER_CANCEL CancelRoutine;
  PVOID UserBuffer;
  union {
    struct {
      __extension__ union {
        KDEVICE_QUEUE_ENTRY DeviceQueueEntry;
        __extension__ struct {
          PVOID DriverContext[4];
        };
      };
      PETHREAD Thread;
      PCHAR AuxiliaryBuffer;
      __extension__ struct {
        LIST_ENTRY ListEntry;
        __extension__ union {
          struct _IO_STACK_LOCATION *CurrentStackLocation;
          ULONG PacketType;
        };
      };
      struct _FILE_OBJECT *OriginalFileObject;
    } Overlay;
    KAPC Apc;
    PVOID CompletionKey;
  } Tail;
} IRP, *PIRP;

#define IO_TYPE_DEVICE 3
#define IO_TYPE_FILE 5
#define IO_TYPE_IRP 6
#define IO_NO_INCREMENT 0
#define IO_NETWORK_INCREMENT 2
#define IoSizeOfIrp(StackSize) ((USHORT)(sizeof(IRP) + (StackSize) * sizeof(IO_STACK_LOCATION)))

typedef VOID(NTAPI IO_WORKITEM_ROUTINE)(PDEVICE_OBJECT DeviceObject, PVOID Context);
typedef IO_WORKITEM_ROUTINE *PIO_WORKITEM_ROUTINE;

typedef struct _IO_WORKITEM {
  WORK_QUEUE_ITEM Item;
  PDEVICE_OBJECT DeviceObject;
  PIO_WORKITEM_ROUTINE Routine;
  PVOID Context;
} IO_WORKITEM, *PIO_WORKITEM;

/* Requests. IoFreeIrp or a completion routine that returns STATUS_SUCCESS ends an IRP's life. */
NTKERNELAPI PIRP NTAPI IoAllocateIrp(IN CCHAR StackSize, IN BOOLEAN ChargeQuota);
NTKERNELAPI VOID NTAPI IoInitializeIrp(IN OUT PIRP Irp, IN USHORT PacketSize, IN CCHAR StackSize);
NTKERNELAPI VOID NTAPI IoReuseIrp(IN OUT PIRP Irp, IN NTSTATUS Status);
NTKERNELAPI VOID NTAPI IoFreeIrp(IN PIRP Irp);
NTKERNELAPI NTSTATUS NTAPI IofCallDriver(IN PDEVICE_OBJECT DeviceObject, IN OUT PIRP Irp);
NTKERNELAPI VOID NTAPI IofCompleteRequest(IN PIRP Irp, IN CCHAR PriorityBoost);
NTKERNELAPI BOOLEAN NTAPI IoCancelIrp(IN PIRP Irp);
#define IoCallDriver IofCallDriver
#define IoCompleteRequest IofCompleteRequest

FORCEINLINE PIO_STACK_LOCATION IoGetCurrentIrpStackLocation(IN PIRP Irp) {
  return Irp->Tail.Overlay.CurrentStackLocation;
}

FORCEINLINE PIO_STACK_LOCATION IoGetNextIrpStackLocation(IN PIRP Irp) {
  return Irp->Tail.Overlay.CurrentStackLocation - 1;
}

/* Allocates an IRP that is freed when it completes. TdiBuildInternalDeviceControlIrp calls this. Requests of TDI have no
 * buffers. */
FORCEINLINE PIRP IoBuildDeviceIoControlRequest(IN ULONG IoControlCode, IN PDEVICE_OBJECT DeviceObject,
                                               IN PVOID InputBuffer OPTIONAL, IN ULONG InputBufferLength,
                                               OUT PVOID OutputBuffer OPTIONAL, IN ULONG OutputBufferLength,
                                               IN BOOLEAN InternalDeviceIoControl, IN PKEVENT Event,
                                               OUT PIO_STATUS_BLOCK IoStatusBlock) {
  PIO_STACK_LOCATION location;
  PIRP irp;
  (void)InputBuffer;
  if (!InternalDeviceIoControl || InputBufferLength != 0 || OutputBuffer != NULL || OutputBufferLength != 0)
    return NULL;
  irp = IoAllocateIrp(DeviceObject == NULL ? 1 : DeviceObject->StackSize, FALSE);
  if (irp == NULL)
    return NULL;
  irp->UserEvent = Event;
  irp->UserIosb = IoStatusBlock;
  location = IoGetNextIrpStackLocation(irp);
  location->MajorFunction = IRP_MJ_INTERNAL_DEVICE_CONTROL;
  location->MinorFunction = (UCHAR)IoControlCode;
  location->DeviceObject = DeviceObject;
  return irp;
}

FORCEINLINE VOID IoSetNextIrpStackLocation(IN OUT PIRP Irp) {
  Irp->CurrentLocation--;
  Irp->Tail.Overlay.CurrentStackLocation--;
}

FORCEINLINE VOID IoSkipCurrentIrpStackLocation(IN OUT PIRP Irp) {
  Irp->CurrentLocation++;
  Irp->Tail.Overlay.CurrentStackLocation++;
}

FORCEINLINE VOID IoCopyCurrentIrpStackLocationToNext(IN OUT PIRP Irp) {
  PIO_STACK_LOCATION next = IoGetNextIrpStackLocation(Irp);
  memcpy(next, IoGetCurrentIrpStackLocation(Irp), offsetof(IO_STACK_LOCATION, CompletionRoutine));
  next->Control = 0;
}

FORCEINLINE VOID IoMarkIrpPending(IN OUT PIRP Irp) {
  IoGetCurrentIrpStackLocation(Irp)->Control |= SL_PENDING_RETURNED;
}

FORCEINLINE VOID IoSetCompletionRoutine(IN PIRP Irp, IN PIO_COMPLETION_ROUTINE CompletionRoutine OPTIONAL,
                                        IN PVOID Context OPTIONAL, IN BOOLEAN InvokeOnSuccess,
                                        IN BOOLEAN InvokeOnError, IN BOOLEAN InvokeOnCancel) {
  PIO_STACK_LOCATION next = IoGetNextIrpStackLocation(Irp);
  next->CompletionRoutine = CompletionRoutine;
  next->Context = Context;
  next->Control = (UCHAR)((InvokeOnSuccess ? SL_INVOKE_ON_SUCCESS : 0) | (InvokeOnError ? SL_INVOKE_ON_ERROR : 0) |
                          (InvokeOnCancel ? SL_INVOKE_ON_CANCEL : 0));
}

/* A cancel routine that a client sets on an IRP of its own is called by IoCancelIrp, holds the cancel spin lock and
 * releases it to Irp->CancelIrql. */
NTKERNELAPI VOID NTAPI IoAcquireCancelSpinLock(OUT PKIRQL Irql);
NTKERNELAPI VOID NTAPI IoReleaseCancelSpinLock(IN KIRQL Irql);

FORCEINLINE PDRIVER_CANCEL IoSetCancelRoutine(IN OUT PIRP Irp, IN PDRIVER_CANCEL CancelRoutine OPTIONAL) {
  return __atomic_exchange_n(&Irp->CancelRoutine, CancelRoutine, __ATOMIC_SEQ_CST);
}

/* Descriptions of memory. All memory of the process is always mapped and locked. */
NTKERNELAPI PMDL NTAPI IoAllocateMdl(IN PVOID VirtualAddress OPTIONAL, IN ULONG Length, IN BOOLEAN SecondaryBuffer,
                                     IN BOOLEAN ChargeQuota, IN OUT PIRP Irp OPTIONAL);
NTKERNELAPI VOID NTAPI IoFreeMdl(IN PMDL Mdl);

#define MmGetMdlByteCount(Mdl) ((Mdl)->ByteCount)
#define MmGetMdlByteOffset(Mdl) ((Mdl)->ByteOffset)
#define MmGetMdlBaseVa(Mdl) ((Mdl)->StartVa)
#define MmGetMdlVirtualAddress(Mdl) ((PVOID)((PCHAR)(Mdl)->StartVa + (Mdl)->ByteOffset))
#define MmGetSystemAddressForMdl(Mdl) MmGetSystemAddressForMdlSafe((Mdl), NormalPagePriority)
#define MmPrepareMdlForReuse(Mdl) ((void)(Mdl))

FORCEINLINE PVOID MmGetSystemAddressForMdlSafe(IN PMDL Mdl, IN ULONG Priority) {
  (void)Priority;
  if ((Mdl->MdlFlags & (MDL_MAPPED_TO_SYSTEM_VA | MDL_SOURCE_IS_NONPAGED_POOL)) != 0)
    return Mdl->MappedSystemVa;
  return MmGetMdlVirtualAddress(Mdl);
}

#define PAGE_SIZE 0x1000
#define ADDRESS_AND_SIZE_TO_SPAN_PAGES(Va, Size) \
  ((ULONG)((((ULONG_PTR)(Va) & (PAGE_SIZE - 1)) + (SIZE_T)(Size) + (PAGE_SIZE - 1)) / PAGE_SIZE))

/* Returns the size of a description with its page numbers, which are not used here. */
FORCEINLINE SIZE_T MmSizeOfMdl(IN PVOID Base, IN SIZE_T Length) {
  return sizeof(MDL) + sizeof(ULONG_PTR) * ADDRESS_AND_SIZE_TO_SPAN_PAGES(Base, Length);
}

/* Describes memory in a description that the client has allocated. */
FORCEINLINE VOID MmInitializeMdl(OUT PMDL Mdl, IN PVOID BaseVa, IN SIZE_T Length) {
  Mdl->Next = NULL;
  Mdl->Size = (CSHORT)MmSizeOfMdl(BaseVa, Length);
  Mdl->MdlFlags = 0;
  Mdl->StartVa = (PVOID)((ULONG_PTR)BaseVa & ~(ULONG_PTR)(PAGE_SIZE - 1));
  Mdl->ByteOffset = (ULONG)((ULONG_PTR)BaseVa & (PAGE_SIZE - 1));
  Mdl->ByteCount = (ULONG)Length;
}

FORCEINLINE PVOID MmMapLockedPages(IN PMDL Mdl, IN KPROCESSOR_MODE AccessMode) {
  (void)AccessMode;
  Mdl->MappedSystemVa = MmGetMdlVirtualAddress(Mdl);
  Mdl->MdlFlags |= MDL_MAPPED_TO_SYSTEM_VA;
  return Mdl->MappedSystemVa;
}

FORCEINLINE VOID MmUnmapLockedPages(IN PVOID BaseAddress, IN PMDL Mdl) {
  (void)BaseAddress;
  Mdl->MdlFlags &= ~MDL_MAPPED_TO_SYSTEM_VA;
}

FORCEINLINE VOID MmBuildMdlForNonPagedPool(IN OUT PMDL Mdl) {
  Mdl->MappedSystemVa = MmGetMdlVirtualAddress(Mdl);
  Mdl->MdlFlags |= MDL_SOURCE_IS_NONPAGED_POOL;
}

/* A description whose memory is locked is freed with the IRP, as by Windows. */
FORCEINLINE VOID MmProbeAndLockPages(IN OUT PMDL Mdl, IN KPROCESSOR_MODE AccessMode, IN LOCK_OPERATION Operation) {
  (void)Operation;
  MmMapLockedPages(Mdl, AccessMode);
  Mdl->MdlFlags |= MDL_PAGES_LOCKED;
}

FORCEINLINE VOID MmUnlockPages(IN OUT PMDL Mdl) {
  Mdl->MdlFlags &= ~(MDL_PAGES_LOCKED | MDL_MAPPED_TO_SYSTEM_VA);
}

/* Describes a part of the memory of another description, which with a length of 0 is the rest of it. */
FORCEINLINE VOID IoBuildPartialMdl(IN PMDL Source, IN OUT PMDL Target, IN PVOID VirtualAddress, IN ULONG Length) {
  PMDL next = Target->Next;
  PCHAR end = (PCHAR)MmGetMdlVirtualAddress(Source) + Source->ByteCount;
  MmInitializeMdl(Target, VirtualAddress, Length == 0 ? (SIZE_T)(end - (PCHAR)VirtualAddress) : Length);
  MmMapLockedPages(Target, KernelMode);
  Target->MdlFlags |= MDL_PARTIAL;
  Target->Next = next;
}

/* Events. A wait at DISPATCH_LEVEL for an event that is not signaled ends the program, as it ends Windows. */
NTKERNELAPI LONG NTAPI KeSetEvent(IN OUT PRKEVENT Event, IN KPRIORITY Increment, IN BOOLEAN Wait);
NTKERNELAPI NTSTATUS NTAPI KeWaitForSingleObject(IN PVOID Object, IN KWAIT_REASON WaitReason,
                                                 IN KPROCESSOR_MODE WaitMode, IN BOOLEAN Alertable,
                                                 IN PLARGE_INTEGER Timeout OPTIONAL);
NTKERNELAPI NTSTATUS NTAPI KeDelayExecutionThread(IN KPROCESSOR_MODE WaitMode, IN BOOLEAN Alertable,
                                                  IN PLARGE_INTEGER Interval);
NTKERNELAPI VOID NTAPI KeQuerySystemTime(OUT PLARGE_INTEGER CurrentTime);

FORCEINLINE VOID KeInitializeEvent(OUT PRKEVENT Event, IN EVENT_TYPE Type, IN BOOLEAN State) {
  memset(Event, 0, sizeof *Event);
  Event->Header.Type = (UCHAR)Type;
  Event->Header.Size = sizeof *Event / sizeof(LONG);
  Event->Header.SignalState = State != FALSE;
  InitializeListHead(&Event->Header.WaitListHead);
}

FORCEINLINE LONG KeResetEvent(IN OUT PRKEVENT Event) {
  return __atomic_exchange_n(&Event->Header.SignalState, 0, __ATOMIC_SEQ_CST);
}

FORCEINLINE VOID KeClearEvent(IN OUT PRKEVENT Event) {
  KeResetEvent(Event);
}

FORCEINLINE LONG KeReadStateEvent(IN PRKEVENT Event) {
  return __atomic_load_n(&Event->Header.SignalState, __ATOMIC_SEQ_CST);
}

/* The IRQL of a thread. To raise it to a lower one, or to lower it to a higher one, ends the program. */
NTKERNELAPI KIRQL NTAPI KeGetCurrentIrql(VOID);
NTKERNELAPI KIRQL NTAPI KfRaiseIrql(IN KIRQL NewIrql);
NTKERNELAPI VOID NTAPI KeLowerIrql(IN KIRQL NewIrql);
#define KeRaiseIrql(NewIrql, OldIrql) (*(OldIrql) = KfRaiseIrql(NewIrql))

FORCEINLINE KIRQL KeRaiseIrqlToDpcLevel(VOID) {
  return KfRaiseIrql(DISPATCH_LEVEL);
}

/* Spin locks. */
FORCEINLINE VOID KeInitializeSpinLock(PKSPIN_LOCK SpinLock) {
  *SpinLock = 0;
}

FORCEINLINE VOID KeAcquireSpinLockAtDpcLevel(PKSPIN_LOCK SpinLock) {
  while (__atomic_exchange_n(SpinLock, 1, __ATOMIC_ACQUIRE) != 0)
    sched_yield();
}

FORCEINLINE VOID KeReleaseSpinLockFromDpcLevel(PKSPIN_LOCK SpinLock) {
  __atomic_store_n(SpinLock, 0, __ATOMIC_RELEASE);
}

FORCEINLINE VOID KeAcquireSpinLock(PKSPIN_LOCK SpinLock, PKIRQL OldIrql) {
  *OldIrql = KeRaiseIrqlToDpcLevel();
  KeAcquireSpinLockAtDpcLevel(SpinLock);
}

FORCEINLINE VOID KeReleaseSpinLock(PKSPIN_LOCK SpinLock, KIRQL NewIrql) {
  KeReleaseSpinLockFromDpcLevel(SpinLock);
  KeLowerIrql(NewIrql);
}

/* Returns the entry that was the first, or NULL. */
FORCEINLINE PLIST_ENTRY ExInterlockedInsertTailList(PLIST_ENTRY ListHead, PLIST_ENTRY ListEntry, PKSPIN_LOCK Lock) {
  PLIST_ENTRY last;
  KIRQL irql;
  KeAcquireSpinLock(Lock, &irql);
  last = IsListEmpty(ListHead) ? NULL : ListHead->Blink;
  InsertTailList(ListHead, ListEntry);
  KeReleaseSpinLock(Lock, irql);
  return last;
}

FORCEINLINE PLIST_ENTRY ExInterlockedInsertHeadList(PLIST_ENTRY ListHead, PLIST_ENTRY ListEntry, PKSPIN_LOCK Lock) {
  PLIST_ENTRY first;
  KIRQL irql;
  KeAcquireSpinLock(Lock, &irql);
  first = IsListEmpty(ListHead) ? NULL : ListHead->Flink;
  InsertHeadList(ListHead, ListEntry);
  KeReleaseSpinLock(Lock, irql);
  return first;
}

FORCEINLINE PLIST_ENTRY ExInterlockedRemoveHeadList(PLIST_ENTRY ListHead, PKSPIN_LOCK Lock) {
  PLIST_ENTRY first;
  KIRQL irql;
  KeAcquireSpinLock(Lock, &irql);
  first = IsListEmpty(ListHead) ? NULL : RemoveHeadList(ListHead);
  KeReleaseSpinLock(Lock, irql);
  return first;
}

/* DPCs and timers. The routines run on the transport's thread at DISPATCH_LEVEL. */
NTKERNELAPI BOOLEAN NTAPI KeInsertQueueDpc(IN OUT PRKDPC Dpc, IN PVOID SystemArgument1, IN PVOID SystemArgument2);
NTKERNELAPI BOOLEAN NTAPI KeRemoveQueueDpc(IN OUT PRKDPC Dpc);
NTKERNELAPI VOID NTAPI KeFlushQueuedDpcs(VOID);
NTKERNELAPI BOOLEAN NTAPI KeSetTimerEx(IN OUT PKTIMER Timer, IN LARGE_INTEGER DueTime, IN LONG Period,
                                       IN PKDPC Dpc OPTIONAL);
NTKERNELAPI BOOLEAN NTAPI KeCancelTimer(IN OUT PKTIMER Timer);

FORCEINLINE VOID KeInitializeDpc(OUT PRKDPC Dpc, IN PKDEFERRED_ROUTINE DeferredRoutine, IN PVOID DeferredContext) {
  memset(Dpc, 0, sizeof *Dpc);
  Dpc->Type = 19; /* DpcObject */
  Dpc->DeferredRoutine = DeferredRoutine;
  Dpc->DeferredContext = DeferredContext;
}

FORCEINLINE VOID KeInitializeTimerEx(OUT PKTIMER Timer, IN TIMER_TYPE Type) {
  memset(Timer, 0, sizeof *Timer);
  Timer->Header.Type = (UCHAR)(8 + Type); /* TimerNotificationObject */
  InitializeListHead(&Timer->Header.WaitListHead);
}

FORCEINLINE VOID KeInitializeTimer(OUT PKTIMER Timer) {
  KeInitializeTimerEx(Timer, NotificationTimer);
}

FORCEINLINE BOOLEAN KeSetTimer(IN OUT PKTIMER Timer, IN LARGE_INTEGER DueTime, IN PKDPC Dpc OPTIONAL) {
  return KeSetTimerEx(Timer, DueTime, 0, Dpc);
}

FORCEINLINE BOOLEAN KeReadStateTimer(IN PKTIMER Timer) {
  return __atomic_load_n(&Timer->Header.SignalState, __ATOMIC_SEQ_CST) != 0;
}

/* Work items and threads, which run at PASSIVE_LEVEL. */
FORCEINLINE VOID ExInitializeWorkItem(OUT PWORK_QUEUE_ITEM Item, IN PWORKER_THREAD_ROUTINE Routine, IN PVOID Context) {
  Item->List.Flink = NULL;
  Item->WorkerRoutine = Routine;
  Item->Parameter = Context;
}

NTKERNELAPI VOID NTAPI ExQueueWorkItem(IN OUT PWORK_QUEUE_ITEM WorkItem, IN WORK_QUEUE_TYPE QueueType);
NTKERNELAPI NTSTATUS NTAPI PsCreateSystemThread(OUT PHANDLE ThreadHandle, IN ULONG DesiredAccess,
                                                IN POBJECT_ATTRIBUTES ObjectAttributes OPTIONAL,
                                                IN HANDLE ProcessHandle OPTIONAL, OUT PCLIENT_ID ClientId OPTIONAL,
                                                IN PKSTART_ROUTINE StartRoutine, IN PVOID StartContext OPTIONAL);
extern POBJECT_TYPE *PsThreadType;

FORCEINLINE PIO_WORKITEM IoAllocateWorkItem(IN PDEVICE_OBJECT DeviceObject) {
  PIO_WORKITEM item = (PIO_WORKITEM)malloc(sizeof *item);
  if (item != NULL)
    item->DeviceObject = DeviceObject;
  return item;
}

FORCEINLINE VOID IopRunWorkItem(PVOID Parameter) {
  PIO_WORKITEM item = (PIO_WORKITEM)Parameter;
  item->Routine(item->DeviceObject, item->Context);
}

/* The routine may free the item. */
FORCEINLINE VOID IoQueueWorkItem(IN OUT PIO_WORKITEM IoWorkItem, IN PIO_WORKITEM_ROUTINE WorkerRoutine,
                                 IN WORK_QUEUE_TYPE QueueType, IN PVOID Context OPTIONAL) {
  IoWorkItem->Routine = WorkerRoutine;
  IoWorkItem->Context = Context;
  ExInitializeWorkItem(&IoWorkItem->Item, IopRunWorkItem, IoWorkItem);
  ExQueueWorkItem(&IoWorkItem->Item, QueueType);
}

FORCEINLINE VOID IoFreeWorkItem(IN PIO_WORKITEM IoWorkItem) {
  free(IoWorkItem);
}

FORCEINLINE NTSTATUS PsTerminateSystemThread(IN NTSTATUS ExitStatus) {
  (void)ExitStatus;
  pthread_exit(NULL);
}

/* Files. */
typedef struct _FILE_FULL_EA_INFORMATION {
  ULONG NextEntryOffset;
  UCHAR Flags;
  UCHAR EaNameLength;
  USHORT EaValueLength;
  CHAR EaName[1]; /* the name, a zero, and the value */
} FILE_FULL_EA_INFORMATION, *PFILE_FULL_EA_INFORMATION;

typedef struct _OBJECT_HANDLE_INFORMATION {
  ULONG HandleAttributes;
  ACCESS_MASK GrantedAccess;
} OBJECT_HANDLE_INFORMATION, *POBJECT_HANDLE_INFORMATION;

#define SYNCHRONIZE 0x00100000
#define GENERIC_READ 0x80000000
#define GENERIC_WRITE 0x40000000
#define DELETE 0x00010000
#define READ_CONTROL 0x00020000
#define STANDARD_RIGHTS_REQUIRED 0x000F0000
#define THREAD_ALL_ACCESS (STANDARD_RIGHTS_REQUIRED | SYNCHRONIZE | 0xFFFF)
#define FILE_READ_DATA 0x0001
#define FILE_WRITE_DATA 0x0002
#define FILE_APPEND_DATA 0x0004
#define FILE_READ_EA 0x0008
#define FILE_WRITE_EA 0x0010
#define FILE_READ_ATTRIBUTES 0x0080
#define FILE_WRITE_ATTRIBUTES 0x0100
#define FILE_ALL_ACCESS (STANDARD_RIGHTS_REQUIRED | SYNCHRONIZE | 0x1FF)
#define FILE_SHARE_READ 0x00000001
#define FILE_SHARE_WRITE 0x00000002
#define FILE_SHARE_DELETE 0x00000004
#define FILE_OPEN 0x00000001
#define FILE_CREATE 0x00000002
#define FILE_OPEN_IF 0x00000003
#define FILE_SYNCHRONOUS_IO_ALERT 0x00000010
#define FILE_SYNCHRONOUS_IO_NONALERT 0x00000020
#define FILE_ATTRIBUTE_NORMAL 0x00000080

extern POBJECT_TYPE *IoFileObjectType;

NTSYSAPI NTSTATUS NTAPI ZwCreateFile(OUT PHANDLE FileHandle, IN ACCESS_MASK DesiredAccess,
                                     IN POBJECT_ATTRIBUTES ObjectAttributes, OUT PIO_STATUS_BLOCK IoStatusBlock,
                                     IN PLARGE_INTEGER AllocationSize OPTIONAL, IN ULONG FileAttributes,
                                     IN ULONG ShareAccess, IN ULONG CreateDisposition, IN ULONG CreateOptions,
                                     IN PVOID EaBuffer OPTIONAL, IN ULONG EaLength);
NTSYSAPI NTSTATUS NTAPI ZwClose(IN HANDLE Handle);
NTKERNELAPI NTSTATUS NTAPI ObReferenceObjectByHandle(IN HANDLE Handle, IN ACCESS_MASK DesiredAccess,
                                                     IN POBJECT_TYPE ObjectType OPTIONAL,
                                                     IN KPROCESSOR_MODE AccessMode, OUT PVOID *Object,
                                                     OUT POBJECT_HANDLE_INFORMATION HandleInformation OPTIONAL);
NTKERNELAPI LONG_PTR NTAPI ObfReferenceObject(IN PVOID Object);
NTKERNELAPI LONG_PTR NTAPI ObfDereferenceObject(IN PVOID Object);
#define ObReferenceObject ObfReferenceObject
#define ObDereferenceObject ObfDereferenceObject
NTKERNELAPI PDEVICE_OBJECT NTAPI IoGetRelatedDeviceObject(IN PFILE_OBJECT FileObject);

/* Opens the control channel of a device, and returns its file object and the device. */
FORCEINLINE NTSTATUS IoGetDeviceObjectPointer(IN PUNICODE_STRING ObjectName, IN ACCESS_MASK DesiredAccess,
                                              OUT PFILE_OBJECT *FileObject, OUT PDEVICE_OBJECT *DeviceObject) {
  OBJECT_ATTRIBUTES attributes;
  HANDLE handle;
  PVOID object;
  NTSTATUS status;
  InitializeObjectAttributes(&attributes, ObjectName, OBJ_KERNEL_HANDLE, NULL, NULL);
  status = ZwCreateFile(&handle, DesiredAccess, &attributes, NULL, NULL, 0, 0, FILE_OPEN, 0, NULL, 0);
  if (!NT_SUCCESS(status))
    return status;
  status = ObReferenceObjectByHandle(handle, DesiredAccess, *IoFileObjectType, KernelMode, &object, NULL);
  if (NT_SUCCESS(status)) {
    *FileObject = (PFILE_OBJECT)object;
    *DeviceObject = IoGetRelatedDeviceObject(*FileObject);
  }
  ZwClose(handle);
  return status;
}

/* Runs a read or a write, and waits for its completion. Events have no handles here, and there are no APCs. */
FORCEINLINE NTSTATUS IopReadOrWrite(IN UCHAR MajorFunction, IN HANDLE FileHandle, IN HANDLE Event,
                                    IN PIO_APC_ROUTINE ApcRoutine, OUT PIO_STATUS_BLOCK IoStatusBlock, IN PVOID Buffer,
                                    IN ULONG Length) {
  IO_STATUS_BLOCK block = {{STATUS_SUCCESS}, 0};
  PIO_STACK_LOCATION location;
  PVOID object;
  KEVENT done;
  MDL mdl;
  PIRP irp;
  if (KeGetCurrentIrql() >= DISPATCH_LEVEL)
    block.Status = STATUS_INVALID_DEVICE_STATE;
  else if (Event != NULL || ApcRoutine != NULL)
    block.Status = STATUS_NOT_SUPPORTED;
  else
    block.Status = ObReferenceObjectByHandle(FileHandle, 0, *IoFileObjectType, KernelMode, &object, NULL);
  if (NT_SUCCESS(block.Status)) {
    KeInitializeEvent(&done, NotificationEvent, FALSE);
    MmInitializeMdl(&mdl, Buffer, Length);
    irp = IoBuildDeviceIoControlRequest(0, NULL, NULL, 0, NULL, 0, TRUE, &done, &block);
    if (irp == NULL) {
      block.Status = STATUS_INSUFFICIENT_RESOURCES;
    } else {
      irp->MdlAddress = &mdl;
      location = IoGetNextIrpStackLocation(irp);
      location->MajorFunction = MajorFunction;
      location->FileObject = (PFILE_OBJECT)object;
      location->Parameters.Read.Length = Length;
      IoCallDriver(location->FileObject->DeviceObject, irp);
      KeWaitForSingleObject(&done, Executive, KernelMode, FALSE, NULL);
    }
    ObDereferenceObject(object);
  }
  if (IoStatusBlock != NULL)
    *IoStatusBlock = block;
  return block.Status;
}

/* Receives normal data, and waits for it. The offset and the key have no effect. */
FORCEINLINE NTSTATUS ZwReadFile(IN HANDLE FileHandle, IN HANDLE Event OPTIONAL, IN PIO_APC_ROUTINE ApcRoutine OPTIONAL,
                                IN PVOID ApcContext OPTIONAL, OUT PIO_STATUS_BLOCK IoStatusBlock, OUT PVOID Buffer,
                                IN ULONG Length, IN PLARGE_INTEGER ByteOffset OPTIONAL, IN PULONG Key OPTIONAL) {
  (void)ApcContext;
  (void)ByteOffset;
  (void)Key;
  return IopReadOrWrite(IRP_MJ_READ, FileHandle, Event, ApcRoutine, IoStatusBlock, Buffer, Length);
}

/* Sends a normal TSDU, and waits for its completion. The offset and the key have no effect. */
FORCEINLINE NTSTATUS ZwWriteFile(IN HANDLE FileHandle, IN HANDLE Event OPTIONAL,
                                 IN PIO_APC_ROUTINE ApcRoutine OPTIONAL, IN PVOID ApcContext OPTIONAL,
                                 OUT PIO_STATUS_BLOCK IoStatusBlock, IN PVOID Buffer, IN ULONG Length,
                                 IN PLARGE_INTEGER ByteOffset OPTIONAL, IN PULONG Key OPTIONAL) {
  (void)ApcContext;
  (void)ByteOffset;
  (void)Key;
  return IopReadOrWrite(IRP_MJ_WRITE, FileHandle, Event, ApcRoutine, IoStatusBlock, Buffer, Length);
}

/* Memory and messages. */
FORCEINLINE PVOID ExAllocatePool(IN POOL_TYPE PoolType, IN SIZE_T NumberOfBytes) {
  (void)PoolType;
  return malloc(NumberOfBytes == 0 ? 1 : NumberOfBytes);
}

FORCEINLINE PVOID ExAllocatePoolWithTag(IN POOL_TYPE PoolType, IN SIZE_T NumberOfBytes, IN ULONG Tag) {
  (void)Tag;
  return ExAllocatePool(PoolType, NumberOfBytes);
}

FORCEINLINE VOID ExFreePool(IN PVOID P) {
  free(P);
}

FORCEINLINE VOID ExFreePoolWithTag(IN PVOID P, IN ULONG Tag) {
  (void)Tag;
  free(P);
}

__attribute__((format(printf, 1, 2))) FORCEINLINE ULONG DbgPrint(IN PCSTR Format, ...) {
  va_list arguments;
  va_start(arguments, Format);
  vfprintf(stderr, Format, arguments);
  va_end(arguments);
  return STATUS_SUCCESS;
}
#define KdPrint(arguments) DbgPrint arguments

#define DbgPrintEx(ComponentId, Level, ...) DbgPrint(__VA_ARGS__)
#define KdPrintEx(arguments) DbgPrintEx arguments
#define DPFLTR_IHVDRIVER_ID 77
#define DPFLTR_ERROR_LEVEL 0
#define DPFLTR_WARNING_LEVEL 1
#define DPFLTR_TRACE_LEVEL 2
#define DPFLTR_INFO_LEVEL 3

/* Ends the program with the condition that does not hold, as a debugging kernel stops. */
#define ASSERT(Condition) ((Condition) ? (void)0 : RtlAssert((PVOID) #Condition, (PVOID)__FILE__, __LINE__, NULL))

FORCEINLINE VOID RtlAssert(IN PVOID FailedAssertion, IN PVOID FileName, IN ULONG LineNumber, IN PCHAR Message OPTIONAL) {
  fprintf(stderr, "%s:%u: assertion failed: %s %s\n", (const char *)FileName, (unsigned int)LineNumber,
          (const char *)FailedAssertion, Message == NULL ? "" : Message);
  abort();
}

#ifdef __cplusplus
}
#endif

#endif
