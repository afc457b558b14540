/* Addresses: those of IPv6, and those that are shared or not (TDI-ADDR-01). */
#include "client.h"

/* Fills the IPv6 address of this machine. The port has network byte order. */
static void LocalAddress6(PTA_IP6_ADDRESS Address, USHORT Port) {
  memset(Address, 0, sizeof *Address);
  Address->TAAddressCount = 1;
  Address->Address[0].AddressLength = TDI_ADDRESS_LENGTH_IP6;
  Address->Address[0].AddressType = TDI_ADDRESS_TYPE_IP6;
  Address->Address[0].Address[0].sin6_addr[7] = RtlUshortByteSwap(1);
  Address->Address[0].Address[0].sin6_port = Port;
}

/* Both ends have IPv6 addresses, and the listen returns that of the peer. */
static void SixthVersion(void) {
  TA_IP6_ADDRESS address, peer;
  TDI_CONNECTION_INFORMATION information, found;
  UCHAR buffer[100];
  OPENED server, there, local, here;
  SUBMITTED submitted, listen;
  ULONG taken;
  PMDL mdl;
  PIRP irp;
  LocalAddress6(&address, 0);
  CHECK_STATUS(OpenFile(&server, TdiTransportAddress, &address, sizeof address, 0), STATUS_SUCCESS);
  irp = NewIrp(&server, &submitted);
  mdl = IoAllocateMdl(buffer, sizeof buffer, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  TdiBuildQueryInformation(irp, server.Device, server.File, NULL, NULL, TDI_QUERY_ADDRESS_INFO, mdl);
  CHECK_STATUS(Run(&server, &submitted), STATUS_SUCCESS);
  IoFreeMdl(mdl);
  memcpy(&address, buffer + FIELD_OFFSET(TDI_ADDRESS_INFO, Address), sizeof address);
  CHECK(address.Address[0].AddressType == TDI_ADDRESS_TYPE_IP6 && address.Address[0].Address[0].sin6_port != 0);

  OpenConnection(&there, NULL);
  CHECK_STATUS(Associate(&there, &server), STATUS_SUCCESS);
  memset(&found, 0, sizeof found);
  found.RemoteAddress = &peer;
  found.RemoteAddressLength = sizeof peer;
  irp = NewIrp(&there, &listen);
  TdiBuildListen(irp, there.Device, there.File, NULL, NULL, 0, NULL, &found);
  Submit(&there, &listen);
  OpenAnyAddress(&local);
  OpenConnection(&here, NULL);
  CHECK_STATUS(Associate(&here, &local), STATUS_SUCCESS);
  memset(&information, 0, sizeof information);
  information.RemoteAddress = &address;
  information.RemoteAddressLength = sizeof address;
  irp = NewIrp(&here, &submitted);
  TdiBuildConnect(irp, here.Device, here.File, NULL, NULL, NULL, &information, NULL);
  CHECK_STATUS(Run(&here, &submitted), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  CHECK(found.RemoteAddressLength == sizeof peer && peer.Address[0].AddressType == TDI_ADDRESS_TYPE_IP6);
  CHECK(memcmp(peer.Address[0].Address[0].sin6_addr, address.Address[0].Address[0].sin6_addr, 16) == 0);
  CHECK_STATUS(Send(&here, "six", 3, 0, &taken), STATUS_SUCCESS);
  Expect(&there, "six");
  CloseFile(&here);
  CloseFile(&local);
  CloseFile(&there);
  CloseFile(&server);
}

/* The first opener decides whether an address is shared. A peer goes to the first that accepts it. */
static void Sharing(void) {
  OPENED first, second, there, local, here;
  SUBMITTED listen;
  USHORT port;
  CHECK_STATUS(OpenAddress(&first, 0, 0), STATUS_SUCCESS);
  port = PortOf(&first);
  CHECK_STATUS(OpenAddress(&second, port, 0), STATUS_SHARING_VIOLATION);
  CHECK_STATUS(OpenAddress(&second, port, FILE_SHARE_READ | FILE_SHARE_WRITE), STATUS_SHARING_VIOLATION);
  CloseFile(&first);

  CHECK_STATUS(OpenAddress(&first, port, FILE_SHARE_READ | FILE_SHARE_WRITE), STATUS_SUCCESS);
  CHECK_STATUS(OpenAddress(&second, port, 0), STATUS_SHARING_VIOLATION);
  CHECK_STATUS(OpenAddress(&second, port, FILE_SHARE_READ | FILE_SHARE_WRITE), STATUS_SUCCESS);
  CHECK(PortOf(&second) == port);
  /* The second has a listen, so the peer comes to it. */
  OpenConnection(&there, NULL);
  CHECK_STATUS(Associate(&there, &second), STATUS_SUCCESS);
  SubmitListen(&there, &listen, 0);
  OpenAnyAddress(&local);
  OpenConnection(&here, NULL);
  CHECK_STATUS(Associate(&here, &local), STATUS_SUCCESS);
  CHECK_STATUS(Connect(&here, port), STATUS_SUCCESS);
  CHECK_STATUS(Finish(&listen), STATUS_SUCCESS);
  CloseFile(&here);
  CloseFile(&local);
  CloseFile(&there);
  CloseFile(&first);
  /* The address stays open until the last opener has closed it. */
  CHECK_STATUS(OpenAddress(&first, port, 0), STATUS_SHARING_VIOLATION);
  CloseFile(&second);
  CHECK_STATUS(OpenAddress(&first, port, 0), STATUS_SUCCESS);
  CloseFile(&first);
}

int main(int argc, char **argv) {
  SelectDevice(argc, argv);
  SixthVersion();
  Sharing();
  printf("addresses over %s: of IPv6, and shared\n", DeviceText);
  return 0;
}
