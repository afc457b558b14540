/* Prints the offset and the size of each field of the structures that clients fill or read. */
#include "client.h"

#include <stddef.h>

#define FIELD(type, field) \
  printf("%s %s %u %u\n", #type, #field, (unsigned)offsetof(type, field), (unsigned)sizeof(((type *)0)->field))
#define SIZE(type) printf("%s - 0 %u\n", #type, (unsigned)sizeof(type))

static void Irps(void) {
  SIZE(IRP);
  FIELD(IRP, Type);
  FIELD(IRP, Size);
  FIELD(IRP, MdlAddress);
  FIELD(IRP, Flags);
  FIELD(IRP, AssociatedIrp);
  FIELD(IRP, ThreadListEntry);
  FIELD(IRP, IoStatus);
  FIELD(IRP, RequestorMode);
  FIELD(IRP, PendingReturned);
  FIELD(IRP, StackCount);
  FIELD(IRP, CurrentLocation);
  FIELD(IRP, Cancel);
  FIELD(IRP, CancelIrql);
  FIELD(IRP, ApcEnvironment);
  FIELD(IRP, AllocationFlags);
  FIELD(IRP, UserIosb);
  FIELD(IRP, UserEvent);
  FIELD(IRP, Overlay);
  FIELD(IRP, CancelRoutine);
  FIELD(IRP, UserBuffer);
  FIELD(IRP, Tail.Overlay.DriverContext);
  FIELD(IRP, Tail.Overlay.Thread);
  FIELD(IRP, Tail.Overlay.AuxiliaryBuffer);
  FIELD(IRP, Tail.Overlay.ListEntry);
  FIELD(IRP, Tail.Overlay.CurrentStackLocation);
  FIELD(IRP, Tail.Overlay.OriginalFileObject);
  SIZE(IO_STACK_LOCATION);
  FIELD(IO_STACK_LOCATION, MajorFunction);
  FIELD(IO_STACK_LOCATION, MinorFunction);
  FIELD(IO_STACK_LOCATION, Flags);
  FIELD(IO_STACK_LOCATION, Control);
  FIELD(IO_STACK_LOCATION, Parameters);
  FIELD(IO_STACK_LOCATION, Parameters.Read.Length);
  FIELD(IO_STACK_LOCATION, Parameters.Read.Key);
  FIELD(IO_STACK_LOCATION, Parameters.Read.ByteOffset);
  FIELD(IO_STACK_LOCATION, Parameters.Write.Length);
  FIELD(IO_STACK_LOCATION, Parameters.Create.Options);
  FIELD(IO_STACK_LOCATION, Parameters.Create.FileAttributes);
  FIELD(IO_STACK_LOCATION, Parameters.Create.ShareAccess);
  FIELD(IO_STACK_LOCATION, Parameters.Create.EaLength);
  FIELD(IO_STACK_LOCATION, Parameters.DeviceIoControl.OutputBufferLength);
  FIELD(IO_STACK_LOCATION, Parameters.DeviceIoControl.InputBufferLength);
  FIELD(IO_STACK_LOCATION, Parameters.DeviceIoControl.IoControlCode);
  FIELD(IO_STACK_LOCATION, Parameters.DeviceIoControl.Type3InputBuffer);
  FIELD(IO_STACK_LOCATION, Parameters.Others.Argument4);
  FIELD(IO_STACK_LOCATION, DeviceObject);
  FIELD(IO_STACK_LOCATION, FileObject);
  FIELD(IO_STACK_LOCATION, CompletionRoutine);
  FIELD(IO_STACK_LOCATION, Context);
}

static void Objects(void) {
  SIZE(MDL);
  FIELD(MDL, Next);
  FIELD(MDL, Size);
  FIELD(MDL, MdlFlags);
  FIELD(MDL, Process);
  FIELD(MDL, MappedSystemVa);
  FIELD(MDL, StartVa);
  FIELD(MDL, ByteCount);
  FIELD(MDL, ByteOffset);
  SIZE(KEVENT);
  FIELD(KEVENT, Header.SignalState);
  FIELD(KEVENT, Header.WaitListHead);
  SIZE(KTIMER);
  FIELD(KTIMER, Header);
  FIELD(KTIMER, Dpc);
  FIELD(KTIMER, Period);
  SIZE(KDPC);
  FIELD(KDPC, DeferredRoutine);
  FIELD(KDPC, DeferredContext);
  FIELD(KDPC, SystemArgument1);
  FIELD(KDPC, SystemArgument2);
  SIZE(WORK_QUEUE_ITEM);
  FIELD(WORK_QUEUE_ITEM, WorkerRoutine);
  FIELD(WORK_QUEUE_ITEM, Parameter);
  SIZE(IO_STATUS_BLOCK);
  FIELD(IO_STATUS_BLOCK, Status);
  FIELD(IO_STATUS_BLOCK, Information);
  SIZE(DEVICE_OBJECT);
  FIELD(DEVICE_OBJECT, ReferenceCount);
  FIELD(DEVICE_OBJECT, DriverObject);
  FIELD(DEVICE_OBJECT, Flags);
  FIELD(DEVICE_OBJECT, Characteristics);
  FIELD(DEVICE_OBJECT, DeviceExtension);
  FIELD(DEVICE_OBJECT, DeviceType);
  FIELD(DEVICE_OBJECT, StackSize);
  SIZE(FILE_OBJECT);
  FIELD(FILE_OBJECT, DeviceObject);
  FIELD(FILE_OBJECT, FsContext);
  FIELD(FILE_OBJECT, FsContext2);
  FIELD(FILE_OBJECT, FinalStatus);
  FIELD(FILE_OBJECT, SharedDelete);
  FIELD(FILE_OBJECT, Flags);
  FIELD(FILE_OBJECT, FileName);
  FIELD(FILE_OBJECT, Lock);
  FIELD(FILE_OBJECT, Event);
  FIELD(FILE_OBJECT, IrpList);
  FIELD(FILE_OBJECT, FileObjectExtension);
  SIZE(UNICODE_STRING);
  FIELD(UNICODE_STRING, Length);
  FIELD(UNICODE_STRING, MaximumLength);
  FIELD(UNICODE_STRING, Buffer);
  SIZE(LARGE_INTEGER);
  FIELD(LARGE_INTEGER, QuadPart);
  FIELD(LARGE_INTEGER, u.HighPart);
  SIZE(OBJECT_ATTRIBUTES);
  FIELD(OBJECT_ATTRIBUTES, RootDirectory);
  FIELD(OBJECT_ATTRIBUTES, ObjectName);
  FIELD(OBJECT_ATTRIBUTES, Attributes);
  FIELD(OBJECT_ATTRIBUTES, SecurityQualityOfService);
  SIZE(FILE_FULL_EA_INFORMATION);
  FIELD(FILE_FULL_EA_INFORMATION, NextEntryOffset);
  FIELD(FILE_FULL_EA_INFORMATION, Flags);
  FIELD(FILE_FULL_EA_INFORMATION, EaNameLength);
  FIELD(FILE_FULL_EA_INFORMATION, EaValueLength);
  FIELD(FILE_FULL_EA_INFORMATION, EaName);
}

static void Tdi(void) {
  SIZE(TDI_REQUEST_KERNEL);
  FIELD(TDI_REQUEST_KERNEL, RequestFlags);
  FIELD(TDI_REQUEST_KERNEL, RequestConnectionInformation);
  FIELD(TDI_REQUEST_KERNEL, ReturnConnectionInformation);
  FIELD(TDI_REQUEST_KERNEL, RequestSpecific);
  FIELD(TDI_REQUEST_KERNEL_ASSOCIATE, AddressHandle);
  FIELD(TDI_REQUEST_KERNEL_ACCEPT, RequestConnectionInformation);
  FIELD(TDI_REQUEST_KERNEL_ACCEPT, ReturnConnectionInformation);
  SIZE(TDI_REQUEST_KERNEL_SEND);
  FIELD(TDI_REQUEST_KERNEL_SEND, SendLength);
  FIELD(TDI_REQUEST_KERNEL_SEND, SendFlags);
  SIZE(TDI_REQUEST_KERNEL_RECEIVE);
  FIELD(TDI_REQUEST_KERNEL_RECEIVE, ReceiveLength);
  FIELD(TDI_REQUEST_KERNEL_RECEIVE, ReceiveFlags);
  SIZE(TDI_REQUEST_KERNEL_SET_EVENT);
  FIELD(TDI_REQUEST_KERNEL_SET_EVENT, EventType);
  FIELD(TDI_REQUEST_KERNEL_SET_EVENT, EventHandler);
  FIELD(TDI_REQUEST_KERNEL_SET_EVENT, EventContext);
  SIZE(TDI_REQUEST_KERNEL_QUERY_INFORMATION);
  FIELD(TDI_REQUEST_KERNEL_QUERY_INFORMATION, QueryType);
  FIELD(TDI_REQUEST_KERNEL_QUERY_INFORMATION, RequestConnectionInformation);
  FIELD(TDI_REQUEST_KERNEL_SET_INFORMATION, SetType);
  SIZE(TDI_CONNECTION_INFORMATION);
  FIELD(TDI_CONNECTION_INFORMATION, UserDataLength);
  FIELD(TDI_CONNECTION_INFORMATION, UserData);
  FIELD(TDI_CONNECTION_INFORMATION, OptionsLength);
  FIELD(TDI_CONNECTION_INFORMATION, Options);
  FIELD(TDI_CONNECTION_INFORMATION, RemoteAddressLength);
  FIELD(TDI_CONNECTION_INFORMATION, RemoteAddress);
  SIZE(TDI_PROVIDER_INFO);
  FIELD(TDI_PROVIDER_INFO, MaxSendSize);
  FIELD(TDI_PROVIDER_INFO, MaxConnectionUserData);
  FIELD(TDI_PROVIDER_INFO, ServiceFlags);
  FIELD(TDI_PROVIDER_INFO, MinimumLookaheadData);
  FIELD(TDI_PROVIDER_INFO, NumberOfResources);
  FIELD(TDI_PROVIDER_INFO, StartTime);
  SIZE(TDI_CONNECTION_INFO);
  FIELD(TDI_CONNECTION_INFO, Event);
  FIELD(TDI_CONNECTION_INFO, ReceiveErrors);
  FIELD(TDI_CONNECTION_INFO, Throughput);
  FIELD(TDI_CONNECTION_INFO, Delay);
  FIELD(TDI_CONNECTION_INFO, SendBufferSize);
  FIELD(TDI_CONNECTION_INFO, Unreliable);
  SIZE(TDI_PROVIDER_STATISTICS);
  FIELD(TDI_PROVIDER_STATISTICS, NoListenFailures);
  FIELD(TDI_PROVIDER_STATISTICS, DatagramBytesSent);
  FIELD(TDI_PROVIDER_STATISTICS, PacketsSent);
  FIELD(TDI_PROVIDER_STATISTICS, DataFrameBytesReceived);
  FIELD(TDI_PROVIDER_STATISTICS, DataFrameBytesRejected);
  FIELD(TDI_PROVIDER_STATISTICS, AckTimerExpirations);
  FIELD(TDI_PROVIDER_STATISTICS, WastedPacketSpace);
  FIELD(TDI_PROVIDER_STATISTICS, NumberOfResources);
  FIELD(TDI_PROVIDER_STATISTICS, ResourceStats);
  SIZE(TRANSPORT_ADDRESS);
  FIELD(TRANSPORT_ADDRESS, Address);
  FIELD(TA_ADDRESS, AddressLength);
  FIELD(TA_ADDRESS, AddressType);
  FIELD(TA_ADDRESS, Address);
  SIZE(TA_IP_ADDRESS);
  SIZE(TDI_ADDRESS_IP);
  FIELD(TDI_ADDRESS_IP, sin_port);
  FIELD(TDI_ADDRESS_IP, in_addr);
  SIZE(TA_IP6_ADDRESS);
  FIELD(TDI_ADDRESS_IP6, sin6_flowinfo);
  FIELD(TDI_ADDRESS_IP6, sin6_addr);
  FIELD(TDI_ADDRESS_IP6, sin6_scope_id);
  FIELD(TDI_ADDRESS_INFO, Address);
  SIZE(TDI_ACTION_HEADER);
}

int main(void) {
  Irps();
  Objects();
  Tdi();
  return 0;
}
