/* TDI for clients in the kernel: requests and events. Include wdm.h, ntddk.h or ntifs.h before it, as on Windows.
 *
 * A TdiBuild... macro fills the next stack location of an IRP, and IoCallDriver submits it. Names, values and the
 * order of parameters are those of Windows. */
#ifndef SMBDIRECT_TDIKRNL_H
#define SMBDIRECT_TDIKRNL_H

#include <tdi.h>
#include <wdm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What FsContext2 of a file object says. */
#define TDI_TRANSPORT_ADDRESS_FILE 1
#define TDI_CONNECTION_FILE 2
#define TDI_CONTROL_CHANNEL_FILE 3

/* Minor functions of IRP_MJ_INTERNAL_DEVICE_CONTROL. */
#define TDI_ASSOCIATE_ADDRESS 0x01
#define TDI_DISASSOCIATE_ADDRESS 0x02
#define TDI_CONNECT 0x03
#define TDI_LISTEN 0x04
#define TDI_ACCEPT 0x05
#define TDI_DISCONNECT 0x06
#define TDI_SEND 0x07
#define TDI_RECEIVE 0x08
#define TDI_SEND_DATAGRAM 0x09
#define TDI_RECEIVE_DATAGRAM 0x0A
#define TDI_SET_EVENT_HANDLER 0x0B
#define TDI_QUERY_INFORMATION 0x0C
#define TDI_SET_INFORMATION 0x0D
#define TDI_ACTION 0x0E

/* The parameters of each minor function. */
typedef struct _TDI_REQUEST_KERNEL {
  ULONG RequestFlags;
  PTDI_CONNECTION_INFORMATION RequestConnectionInformation;
  PTDI_CONNECTION_INFORMATION ReturnConnectionInformation;
  PVOID RequestSpecific; /* a PLARGE_INTEGER: the negative of a time-out in units of 100 ns, or NULL */
} TDI_REQUEST_KERNEL, *PTDI_REQUEST_KERNEL;

typedef TDI_REQUEST_KERNEL TDI_REQUEST_KERNEL_DISASSOCIATE, *PTDI_REQUEST_KERNEL_DISASSOCIATE;
typedef TDI_REQUEST_KERNEL TDI_REQUEST_KERNEL_CONNECT, *PTDI_REQUEST_KERNEL_CONNECT;
typedef TDI_REQUEST_KERNEL TDI_REQUEST_KERNEL_DISCONNECT, *PTDI_REQUEST_KERNEL_DISCONNECT;
typedef TDI_REQUEST_KERNEL TDI_REQUEST_KERNEL_LISTEN, *PTDI_REQUEST_KERNEL_LISTEN;

typedef struct _TDI_REQUEST_KERNEL_ASSOCIATE {
  HANDLE AddressHandle;
} TDI_REQUEST_KERNEL_ASSOCIATE, *PTDI_REQUEST_KERNEL_ASSOCIATE;

typedef struct _TDI_REQUEST_KERNEL_ACCEPT {
  PTDI_CONNECTION_INFORMATION RequestConnectionInformation;
  PTDI_CONNECTION_INFORMATION ReturnConnectionInformation;
} TDI_REQUEST_KERNEL_ACCEPT, *PTDI_REQUEST_KERNEL_ACCEPT;

typedef struct _TDI_REQUEST_KERNEL_SEND {
  ULONG SendLength;
  ULONG SendFlags;
} TDI_REQUEST_KERNEL_SEND, *PTDI_REQUEST_KERNEL_SEND;

typedef struct _TDI_REQUEST_KERNEL_RECEIVE {
  ULONG ReceiveLength;
  ULONG ReceiveFlags;
} TDI_REQUEST_KERNEL_RECEIVE, *PTDI_REQUEST_KERNEL_RECEIVE;

typedef struct _TDI_REQUEST_KERNEL_SENDDG {
  ULONG SendLength;
  PTDI_CONNECTION_INFORMATION SendDatagramInformation;
} TDI_REQUEST_KERNEL_SENDDG, *PTDI_REQUEST_KERNEL_SENDDG;

typedef struct _TDI_REQUEST_KERNEL_RECEIVEDG {
  ULONG ReceiveLength;
  PTDI_CONNECTION_INFORMATION ReceiveDatagramInformation;
  PTDI_CONNECTION_INFORMATION ReturnDatagramInformation;
  ULONG ReceiveFlags;
} TDI_REQUEST_KERNEL_RECEIVEDG, *PTDI_REQUEST_KERNEL_RECEIVEDG;

typedef struct _TDI_REQUEST_KERNEL_SET_EVENT {
  LONG EventType;
  PVOID EventHandler;
  PVOID EventContext;
} TDI_REQUEST_KERNEL_SET_EVENT, *PTDI_REQUEST_KERNEL_SET_EVENT;

typedef struct _TDI_REQUEST_KERNEL_QUERY_INFO {
  LONG QueryType;
  PTDI_CONNECTION_INFORMATION RequestConnectionInformation;
} TDI_REQUEST_KERNEL_QUERY_INFORMATION, *PTDI_REQUEST_KERNEL_QUERY_INFORMATION;

typedef struct _TDI_REQUEST_KERNEL_SET_INFO {
  LONG SetType;
  PTDI_CONNECTION_INFORMATION RequestConnectionInformation;
} TDI_REQUEST_KERNEL_SET_INFORMATION, *PTDI_REQUEST_KERNEL_SET_INFORMATION;

/* Events, and the handlers of a client for them. */
#define TDI_EVENT_CONNECT 0
#define TDI_EVENT_DISCONNECT 1
#define TDI_EVENT_ERROR 2
#define TDI_EVENT_RECEIVE 3
#define TDI_EVENT_RECEIVE_DATAGRAM 4
#define TDI_EVENT_RECEIVE_EXPEDITED 5
#define TDI_EVENT_SEND_POSSIBLE 6
#define TDI_EVENT_CHAINED_RECEIVE 7
#define TDI_EVENT_CHAINED_RECEIVE_DATAGRAM 8
#define TDI_EVENT_CHAINED_RECEIVE_EXPEDITED 9
#define TDI_EVENT_ERROR_EX 10

typedef NTSTATUS(NTAPI *PTDI_IND_CONNECT)(IN PVOID TdiEventContext, IN LONG RemoteAddressLength, IN PVOID RemoteAddress,
                                          IN LONG UserDataLength, IN PVOID UserData, IN LONG OptionsLength,
                                          IN PVOID Options, OUT CONNECTION_CONTEXT *ConnectionContext,
                                          OUT PIRP *AcceptIrp);
typedef NTSTATUS(NTAPI *PTDI_IND_DISCONNECT)(IN PVOID TdiEventContext, IN CONNECTION_CONTEXT ConnectionContext,
                                             IN LONG DisconnectDataLength, IN PVOID DisconnectData,
                                             IN LONG DisconnectInformationLength, IN PVOID DisconnectInformation,
                                             IN ULONG DisconnectFlags);
typedef NTSTATUS(NTAPI *PTDI_IND_ERROR)(IN PVOID TdiEventContext, IN NTSTATUS Status);
typedef NTSTATUS(NTAPI *PTDI_IND_ERROR_EX)(IN PVOID TdiEventContext, IN NTSTATUS Status, IN PVOID Buffer);
typedef NTSTATUS(NTAPI *PTDI_IND_RECEIVE)(IN PVOID TdiEventContext, IN CONNECTION_CONTEXT ConnectionContext,
                                          IN ULONG ReceiveFlags, IN ULONG BytesIndicated, IN ULONG BytesAvailable,
                                          OUT ULONG *BytesTaken, IN PVOID Tsdu, OUT PIRP *IoRequestPacket);
typedef PTDI_IND_RECEIVE PTDI_IND_RECEIVE_EXPEDITED;
typedef NTSTATUS(NTAPI *PTDI_IND_CHAINED_RECEIVE)(IN PVOID TdiEventContext, IN CONNECTION_CONTEXT ConnectionContext,
                                                  IN ULONG ReceiveFlags, IN ULONG ReceiveLength,
                                                  IN ULONG StartingOffset, IN PMDL Tsdu, IN PVOID TsduDescriptor);
typedef PTDI_IND_CHAINED_RECEIVE PTDI_IND_CHAINED_RECEIVE_EXPEDITED;
typedef NTSTATUS(NTAPI *PTDI_IND_SEND_POSSIBLE)(IN PVOID TdiEventContext, IN PVOID ConnectionContext,
                                                IN ULONG BytesAvailable);

/* Fills the fields that all requests have. */
#define TdiBuildBaseIrp(bIrp, bDevObj, bFileObj, bCompRoutine, bContxt, bIrpSp, bMinor)       \
  {                                                                                           \
    (bIrpSp)->MajorFunction = IRP_MJ_INTERNAL_DEVICE_CONTROL;                                 \
    (bIrpSp)->MinorFunction = (bMinor);                                                       \
    (bIrpSp)->DeviceObject = (bDevObj);                                                       \
    (bIrpSp)->FileObject = (bFileObj);                                                        \
    {                                                                                         \
      PIO_COMPLETION_ROUTINE tdi_routine_ = (PIO_COMPLETION_ROUTINE)(bCompRoutine);               \
      BOOLEAN tdi_invoked_ = (BOOLEAN)(tdi_routine_ != NULL);                                         \
      IoSetCompletionRoutine((bIrp), tdi_routine_, tdi_invoked_ ? (PVOID)(bContxt) : NULL, tdi_invoked_, tdi_invoked_, tdi_invoked_); \
    }                                                                                         \
  }

/* Fills the parameters, which have the type `Type`, by the statement `Assignments` on `tdi_request_`. */
#define TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, Minor, Type, Assignments)                           \
  {                                                                                                               \
    PIRP tdi_irp_ = (Irp);                                                                                            \
    PIO_STACK_LOCATION tdi_location_ = IoGetNextIrpStackLocation(tdi_irp_);                                               \
    Type *tdi_request_ = (Type *)(PVOID)&tdi_location_->Parameters;                                                       \
    TdiBuildBaseIrp(tdi_irp_, DevObj, FileObj, CompRoutine, Contxt, tdi_location_, Minor);                                \
    (void)tdi_request_;                                                                                               \
    Assignments;                                                                                                  \
  }

#define TdiBuildAssociateAddress(Irp, DevObj, FileObj, CompRoutine, Contxt, AddrHandle)                   \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_ASSOCIATE_ADDRESS, TDI_REQUEST_KERNEL_ASSOCIATE, \
             tdi_request_->AddressHandle = (HANDLE)(AddrHandle))

#define TdiBuildDisassociateAddress(Irp, DevObj, FileObj, CompRoutine, Contxt) \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_DISASSOCIATE_ADDRESS, TDI_REQUEST_KERNEL, (void)0)

#define TdiBuildConnect(Irp, DevObj, FileObj, CompRoutine, Contxt, Time, RequestConnectionInfo, ReturnConnectionInfo) \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_CONNECT, TDI_REQUEST_KERNEL,                             \
             (tdi_request_->RequestConnectionInformation = (RequestConnectionInfo),                                      \
              tdi_request_->ReturnConnectionInformation = (ReturnConnectionInfo), tdi_request_->RequestFlags = 0,            \
              tdi_request_->RequestSpecific = (PVOID)(Time)))

#define TdiBuildListen(Irp, DevObj, FileObj, CompRoutine, Contxt, Flags, RequestConnectionInfo, ReturnConnectionInfo) \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_LISTEN, TDI_REQUEST_KERNEL,                              \
             (tdi_request_->RequestConnectionInformation = (RequestConnectionInfo),                                      \
              tdi_request_->ReturnConnectionInformation = (ReturnConnectionInfo), tdi_request_->RequestFlags = (Flags),      \
              tdi_request_->RequestSpecific = NULL))

#define TdiBuildAccept(Irp, DevObj, FileObj, CompRoutine, Contxt, RequestConnectionInfo, ReturnConnectionInfo) \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_ACCEPT, TDI_REQUEST_KERNEL_ACCEPT,                \
             (tdi_request_->RequestConnectionInformation = (RequestConnectionInfo),                               \
              tdi_request_->ReturnConnectionInformation = (ReturnConnectionInfo)))

#define TdiBuildDisconnect(Irp, DevObj, FileObj, CompRoutine, Contxt, Time, Flags, RequestConnectionInfo, \
                           ReturnConnectionInfo)                                                          \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_DISCONNECT, TDI_REQUEST_KERNEL,               \
             (tdi_request_->RequestConnectionInformation = (RequestConnectionInfo),                           \
              tdi_request_->ReturnConnectionInformation = (ReturnConnectionInfo),                             \
              tdi_request_->RequestFlags = (ULONG)(ULONG_PTR)(Flags), tdi_request_->RequestSpecific = (PVOID)(Time)))

#define TdiBuildSend(Irp, DevObj, FileObj, CompRoutine, Contxt, MdlAddr, InFlags, SendLen) \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_SEND, TDI_REQUEST_KERNEL_SEND, \
             (tdi_request_->SendFlags = (InFlags), tdi_request_->SendLength = (SendLen), tdi_irp_->MdlAddress = (MdlAddr)))

#define TdiBuildReceive(Irp, DevObj, FileObj, CompRoutine, Contxt, MdlAddr, InFlags, ReceiveLen)  \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_RECEIVE, TDI_REQUEST_KERNEL_RECEIVE, \
             (tdi_request_->ReceiveFlags = (InFlags), tdi_request_->ReceiveLength = (ReceiveLen), tdi_irp_->MdlAddress = (MdlAddr)))

/* SMB Direct has no datagrams: these requests complete with STATUS_INVALID_DEVICE_REQUEST. */
#define TdiBuildSendDatagram(Irp, DevObj, FileObj, CompRoutine, Contxt, MdlAddr, SendLen, SendDatagramInfo)          \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_SEND_DATAGRAM, TDI_REQUEST_KERNEL_SENDDG,                \
             (tdi_request_->SendLength = (SendLen), tdi_request_->SendDatagramInformation = (SendDatagramInfo),       \
              tdi_irp_->MdlAddress = (MdlAddr)))

#define TdiBuildReceiveDatagram(Irp, DevObj, FileObj, CompRoutine, Contxt, MdlAddr, ReceiveLen, ReceiveDatagramInfo, \
                                ReturnInfo, InFlags)                                                                 \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_RECEIVE_DATAGRAM, TDI_REQUEST_KERNEL_RECEIVEDG,          \
             (tdi_request_->ReceiveLength = (ReceiveLen),                                                            \
              tdi_request_->ReceiveDatagramInformation = (ReceiveDatagramInfo),                                      \
              tdi_request_->ReturnDatagramInformation = (ReturnInfo), tdi_request_->ReceiveFlags = (InFlags),        \
              tdi_irp_->MdlAddress = (MdlAddr)))

#define TdiBuildSetEventHandler(Irp, DevObj, FileObj, CompRoutine, Contxt, InEventType, InEventHandler, InEventContext) \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_SET_EVENT_HANDLER, TDI_REQUEST_KERNEL_SET_EVENT,           \
             (tdi_request_->EventType = (InEventType), tdi_request_->EventHandler = (PVOID)(InEventHandler),                   \
              tdi_request_->EventContext = (PVOID)(InEventContext)))

#define TdiBuildQueryInformation(Irp, DevObj, FileObj, CompRoutine, Contxt, QType, MdlAddr)                           \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_QUERY_INFORMATION, TDI_REQUEST_KERNEL_QUERY_INFORMATION, \
             (tdi_request_->RequestConnectionInformation = NULL, tdi_request_->QueryType = (LONG)(QType),                    \
              tdi_irp_->MdlAddress = (MdlAddr)))

#define TdiBuildSetInformation(Irp, DevObj, FileObj, CompRoutine, Contxt, SType, MdlAddr)                        \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_SET_INFORMATION, TDI_REQUEST_KERNEL_SET_INFORMATION, \
             (tdi_request_->RequestConnectionInformation = NULL, tdi_request_->SetType = (LONG)(SType),                  \
              tdi_irp_->MdlAddress = (MdlAddr)))

#define TdiBuildAction(Irp, DevObj, FileObj, CompRoutine, Contxt, MdlAddr)                \
  TDI_BUILD_(Irp, DevObj, FileObj, CompRoutine, Contxt, TDI_ACTION, TDI_REQUEST_KERNEL, tdi_irp_->MdlAddress = (MdlAddr))

/* Allocates an IRP that is freed when it completes. Completion writes the status block and sets the event. */
#define TdiBuildInternalDeviceControlIrp(IrpSubFunction, DeviceObject, FileObject, Event, IoStatusBlock)          \
  IoBuildDeviceIoControlRequest((ULONG)(IrpSubFunction), (DeviceObject), NULL, 0, NULL, 0, TRUE, (Event), \
                                (IoStatusBlock))

/* What the transport does for an event without a handler. */
FORCEINLINE NTSTATUS TdiDefaultConnectHandler(IN PVOID TdiEventContext, IN LONG RemoteAddressLength,
                                                    IN PVOID RemoteAddress, IN LONG UserDataLength, IN PVOID UserData,
                                                    IN LONG OptionsLength, IN PVOID Options,
                                                    OUT CONNECTION_CONTEXT *ConnectionContext, OUT PIRP *AcceptIrp) {
  (void)TdiEventContext, (void)RemoteAddressLength, (void)RemoteAddress, (void)UserDataLength, (void)UserData;
  (void)OptionsLength, (void)Options, (void)ConnectionContext, (void)AcceptIrp;
  return STATUS_CONNECTION_REFUSED;
}

FORCEINLINE NTSTATUS TdiDefaultDisconnectHandler(IN PVOID TdiEventContext, IN CONNECTION_CONTEXT ConnectionContext,
                                                       IN LONG DisconnectDataLength, IN PVOID DisconnectData,
                                                       IN LONG DisconnectInformationLength,
                                                       IN PVOID DisconnectInformation, IN ULONG DisconnectFlags) {
  (void)TdiEventContext, (void)ConnectionContext, (void)DisconnectDataLength, (void)DisconnectData;
  (void)DisconnectInformationLength, (void)DisconnectInformation, (void)DisconnectFlags;
  return STATUS_SUCCESS;
}

FORCEINLINE NTSTATUS TdiDefaultErrorHandler(IN PVOID TdiEventContext, IN NTSTATUS Status) {
  (void)TdiEventContext, (void)Status;
  return STATUS_SUCCESS;
}

FORCEINLINE NTSTATUS TdiDefaultReceiveHandler(IN PVOID TdiEventContext, IN CONNECTION_CONTEXT ConnectionContext,
                                                    IN ULONG ReceiveFlags, IN ULONG BytesIndicated,
                                                    IN ULONG BytesAvailable, OUT ULONG *BytesTaken, IN PVOID Tsdu,
                                                    OUT PIRP *IoRequestPacket) {
  (void)TdiEventContext, (void)ConnectionContext, (void)ReceiveFlags, (void)BytesIndicated, (void)BytesAvailable;
  (void)BytesTaken, (void)Tsdu, (void)IoRequestPacket;
  return STATUS_DATA_NOT_ACCEPTED;
}

FORCEINLINE NTSTATUS TdiDefaultRcvExpeditedHandler(IN PVOID TdiEventContext, IN CONNECTION_CONTEXT ConnectionContext,
                                                   IN ULONG ReceiveFlags, IN ULONG BytesIndicated,
                                                   IN ULONG BytesAvailable, OUT ULONG *BytesTaken, IN PVOID Tsdu,
                                                   OUT PIRP *IoRequestPacket) {
  return TdiDefaultReceiveHandler(TdiEventContext, ConnectionContext, ReceiveFlags, BytesIndicated, BytesAvailable,
                                  BytesTaken, Tsdu, IoRequestPacket);
}

FORCEINLINE NTSTATUS TdiDefaultSendPossibleHandler(IN PVOID TdiEventContext, IN PVOID ConnectionContext,
                                                         IN ULONG BytesAvailable) {
  (void)TdiEventContext, (void)ConnectionContext, (void)BytesAvailable;
  return STATUS_SUCCESS;
}

/* Maps a request of a program to one of a client in the kernel. There are no requests of programs here. */
FORCEINLINE NTSTATUS TdiMapUserRequest(IN PDEVICE_OBJECT DeviceObject, IN PIRP Irp, IN PIO_STACK_LOCATION IrpSp) {
  (void)DeviceObject, (void)Irp, (void)IrpSp;
  return STATUS_NOT_IMPLEMENTED;
}

/* Returns TSDUs that ClientEventChainedReceive handlers kept by returning STATUS_PENDING. */
VOID NTAPI TdiReturnChainedReceives(IN PVOID *TsduDescriptors, IN ULONG NumberOfTsdus);

NTSTATUS NTAPI TdiCopyBufferToMdl(IN PVOID SourceBuffer, IN ULONG SourceOffset, IN ULONG SourceBytesToCopy,
                                  IN PMDL DestinationMdlChain, IN ULONG DestinationOffset, IN PULONG BytesCopied);
NTSTATUS NTAPI TdiCopyMdlToBuffer(IN PMDL SourceMdlChain, IN ULONG SourceOffset, IN PVOID DestinationBuffer,
                                  IN ULONG DestinationOffset, IN ULONG DestinationBufferSize, OUT PULONG BytesCopied);
#define TdiCopyLookaheadData(Destination, Source, Length, ReceiveFlags) RtlCopyMemory(Destination, Source, Length)

#ifdef __cplusplus
}
#endif

#endif
