/* TDI: what clients in the kernel and in programs share. Names, values and layouts are those of Windows. */
#ifndef SMBDIRECT_TDI_H
#define SMBDIRECT_TDI_H

#include <ntdef.h>
#include <tdistat.h>

/* The client's name for a connection, which every event of the connection repeats. */
typedef PVOID CONNECTION_CONTEXT;

typedef struct _TDI_CONNECTION_INFORMATION {
  LONG UserDataLength;
  PVOID UserData;
  LONG OptionsLength;
  PVOID Options;
  LONG RemoteAddressLength;
  PVOID RemoteAddress; /* a TRANSPORT_ADDRESS */
} TDI_CONNECTION_INFORMATION, *PTDI_CONNECTION_INFORMATION;

/* Flags of sends. */
#define TDI_SEND_EXPEDITED 0x0020
#define TDI_SEND_PARTIAL 0x0040
#define TDI_SEND_NO_RESPONSE_EXPECTED 0x0080
#define TDI_SEND_NON_BLOCKING 0x0100
#define TDI_SEND_AND_DISCONNECT 0x0200

/* Flags of receives and of indications. */
#define TDI_RECEIVE_BROADCAST 0x00000004
#define TDI_RECEIVE_MULTICAST 0x00000008
#define TDI_RECEIVE_PARTIAL 0x00000010
#define TDI_RECEIVE_NORMAL 0x00000020
#define TDI_RECEIVE_EXPEDITED 0x00000040
#define TDI_RECEIVE_PEEK 0x00000080
#define TDI_RECEIVE_NO_RESPONSE_EXP 0x00000100
#define TDI_RECEIVE_COPY_LOOKAHEAD 0x00000200
#define TDI_RECEIVE_ENTIRE_MESSAGE 0x00000400
#define TDI_RECEIVE_AT_DISPATCH_LEVEL 0x00000800
#define TDI_RECEIVE_CONTROL_INFO 0x00001000

#define TDI_QUERY_ACCEPT 0x00000001

#define TDI_DISCONNECT_WAIT 0x0001
#define TDI_DISCONNECT_ABORT 0x0002
#define TDI_DISCONNECT_RELEASE 0x0004

/* Queries. */
#define TDI_QUERY_BROADCAST_ADDRESS 0x00000001
#define TDI_QUERY_PROVIDER_INFO 0x00000002
#define TDI_QUERY_ADDRESS_INFO 0x00000003
#define TDI_QUERY_CONNECTION_INFO 0x00000004
#define TDI_QUERY_PROVIDER_STATISTICS 0x00000005
#define TDI_QUERY_DATAGRAM_INFO 0x00000006
#define TDI_QUERY_DATA_LINK_ADDRESS 0x00000007
#define TDI_QUERY_NETWORK_ADDRESS 0x00000008
#define TDI_QUERY_MAX_DATAGRAM_INFO 0x00000009

typedef struct _TDI_PROVIDER_INFO {
  ULONG Version;
  ULONG MaxSendSize;
  ULONG MaxConnectionUserData;
  ULONG MaxDatagramSize;
  ULONG ServiceFlags;
  ULONG MinimumLookaheadData;
  ULONG MaximumLookaheadData;
  ULONG NumberOfResources;
  LARGE_INTEGER StartTime;
} TDI_PROVIDER_INFO, *PTDI_PROVIDER_INFO;

#define TDI_SERVICE_CONNECTION_MODE 0x00000001
#define TDI_SERVICE_ORDERLY_RELEASE 0x00000002
#define TDI_SERVICE_CONNECTIONLESS_MODE 0x00000004
#define TDI_SERVICE_ERROR_FREE_DELIVERY 0x00000008
#define TDI_SERVICE_SECURITY_LEVEL 0x00000010
#define TDI_SERVICE_BROADCAST_SUPPORTED 0x00000020
#define TDI_SERVICE_MULTICAST_SUPPORTED 0x00000040
#define TDI_SERVICE_DELAYED_ACCEPTANCE 0x00000080
#define TDI_SERVICE_EXPEDITED_DATA 0x00000100
#define TDI_SERVICE_INTERNAL_BUFFERING 0x00000200
#define TDI_SERVICE_ROUTE_DIRECTED 0x00000400
#define TDI_SERVICE_NO_ZERO_LENGTH 0x00000800
#define TDI_SERVICE_POINT_TO_POINT 0x00001000
#define TDI_SERVICE_MESSAGE_MODE 0x00002000
#define TDI_SERVICE_HALF_DUPLEX 0x00004000
#define TDI_SERVICE_DGRAM_CONNECTION 0x00008000
#define TDI_SERVICE_FORCE_ACCESS_CHECK 0x00010000
#define TDI_SERVICE_SEND_AND_DISCONNECT 0x00020000
#define TDI_SERVICE_DIRECT_ACCEPT 0x00040000
#define TDI_SERVICE_ACCEPT_LOCAL_ADDR 0x00080000

typedef struct _TDI_CONNECTION_INFO {
  ULONG State;
  ULONG Event;
  ULONG TransmittedTsdus;
  ULONG ReceivedTsdus;
  ULONG TransmissionErrors;
  ULONG ReceiveErrors;
  LARGE_INTEGER Throughput;
  LARGE_INTEGER Delay;
  ULONG SendBufferSize;
  ULONG ReceiveBufferSize;
  BOOLEAN Unreliable;
} TDI_CONNECTION_INFO, *PTDI_CONNECTION_INFO;

typedef struct _TDI_PROVIDER_RESOURCE_STATS {
  ULONG ResourceId;
  ULONG MaximumResourceUsed;
  ULONG AverageResourceUsed;
  ULONG ResourceExhausted;
} TDI_PROVIDER_RESOURCE_STATS, *PTDI_PROVIDER_RESOURCE_STATS;

typedef struct _TDI_PROVIDER_STATISTICS {
  ULONG Version;
  ULONG OpenConnections;
  ULONG ConnectionsAfterNoRetry;
  ULONG ConnectionsAfterRetry;
  ULONG LocalDisconnects;
  ULONG RemoteDisconnects;
  ULONG LinkFailures;
  ULONG AdapterFailures;
  ULONG SessionTimeouts;
  ULONG CancelledConnections;
  ULONG RemoteResourceFailures;
  ULONG LocalResourceFailures;
  ULONG NotFoundFailures;
  ULONG NoListenFailures;
  ULONG DatagramsSent;
  LARGE_INTEGER DatagramBytesSent;
  ULONG DatagramsReceived;
  LARGE_INTEGER DatagramBytesReceived;
  ULONG PacketsSent;
  ULONG PacketsReceived;
  ULONG DataFramesSent;
  LARGE_INTEGER DataFrameBytesSent;
  ULONG DataFramesReceived;
  LARGE_INTEGER DataFrameBytesReceived;
  ULONG DataFramesResent;
  LARGE_INTEGER DataFrameBytesResent;
  ULONG DataFramesRejected;
  LARGE_INTEGER DataFrameBytesRejected;
  ULONG ResponseTimerExpirations;
  ULONG AckTimerExpirations;
  ULONG MaximumSendWindow;
  ULONG AverageSendWindow;
  ULONG PiggybackAckQueued;
  ULONG PiggybackAckTimeouts;
  LARGE_INTEGER WastedPacketSpace;
  ULONG WastedSpacePackets;
  ULONG NumberOfResources;
  TDI_PROVIDER_RESOURCE_STATS ResourceStats[1];
} TDI_PROVIDER_STATISTICS, *PTDI_PROVIDER_STATISTICS;

typedef struct _TDI_ACTION_HEADER {
  ULONG TransportId;
  USHORT ActionCode;
  USHORT Reserved;
} TDI_ACTION_HEADER, *PTDI_ACTION_HEADER;

/* The names of the extended attributes with which files are opened. */
#define TdiTransportAddress "TransportAddress"
#define TdiConnectionContext "ConnectionContext"
#define TDI_TRANSPORT_ADDRESS_LENGTH (sizeof(TdiTransportAddress) - 1)
#define TDI_CONNECTION_CONTEXT_LENGTH (sizeof(TdiConnectionContext) - 1)

/* Addresses. */
#define TDI_ADDRESS_TYPE_UNSPEC 0
#define TDI_ADDRESS_TYPE_IP 2
#define TDI_ADDRESS_TYPE_NETBIOS 17
#define TDI_ADDRESS_TYPE_IP6 23

typedef struct _TA_ADDRESS {
  USHORT AddressLength;
  USHORT AddressType;
  UCHAR Address[1];
} TA_ADDRESS, *PTA_ADDRESS;

typedef struct _TRANSPORT_ADDRESS {
  LONG TAAddressCount;
  TA_ADDRESS Address[1];
} TRANSPORT_ADDRESS, *PTRANSPORT_ADDRESS;

typedef struct _TDI_ADDRESS_INFO {
  ULONG ActivityCount;
  TRANSPORT_ADDRESS Address;
} TDI_ADDRESS_INFO, *PTDI_ADDRESS_INFO;

/* These have no gaps. The port and the address are in network byte order. */
#pragma pack(push, 1)

typedef struct _TDI_ADDRESS_IP {
  USHORT sin_port;
  ULONG in_addr;
  UCHAR sin_zero[8];
} TDI_ADDRESS_IP, *PTDI_ADDRESS_IP;

typedef struct _TDI_ADDRESS_IP6 {
  USHORT sin6_port;
  ULONG sin6_flowinfo;
  USHORT sin6_addr[8];
  ULONG sin6_scope_id;
} TDI_ADDRESS_IP6, *PTDI_ADDRESS_IP6;

typedef struct _TA_ADDRESS_IP {
  LONG TAAddressCount;
  struct _AddrIp {
    USHORT AddressLength;
    USHORT AddressType;
    TDI_ADDRESS_IP Address[1];
  } Address[1];
} TA_IP_ADDRESS, *PTA_IP_ADDRESS;

typedef struct _TA_ADDRESS_IP6 {
  LONG TAAddressCount;
  struct _AddrIp6 {
    USHORT AddressLength;
    USHORT AddressType;
    TDI_ADDRESS_IP6 Address[1];
  } Address[1];
} TA_IP6_ADDRESS, *PTA_IP6_ADDRESS;

#pragma pack(pop)

#define TDI_ADDRESS_LENGTH_IP sizeof(TDI_ADDRESS_IP)
#define TDI_ADDRESS_LENGTH_IP6 sizeof(TDI_ADDRESS_IP6)

#endif
