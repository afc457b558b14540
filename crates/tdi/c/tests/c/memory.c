/* Memory descriptions: copies, chains that lead back to themselves, and what ends with an IRP. */
#include "client.h"

static PMDL Memory(PVOID Start, ULONG Length) {
  PMDL mdl = IoAllocateMdl(Start, Length, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  return mdl;
}

/* A copy that is cut off says so. */
static void Copies(void) {
  char first[3], second[4], buffer[10];
  PMDL chain = Memory(first, sizeof first);
  ULONG copied;
  chain->Next = Memory(second, sizeof second);
  CHECK_STATUS(TdiCopyBufferToMdl("xabcdefg", 1, 7, chain, 0, &copied), STATUS_SUCCESS);
  CHECK(copied == 7 && memcmp(first, "abc", 3) == 0 && memcmp(second, "defg", 4) == 0);
  CHECK_STATUS(TdiCopyBufferToMdl("12345678", 0, 8, chain, 0, &copied), STATUS_BUFFER_OVERFLOW);
  CHECK(copied == 7 && memcmp(second, "4567", 4) == 0);
  CHECK_STATUS(TdiCopyBufferToMdl("xyz", 0, 3, chain, 5, &copied), STATUS_BUFFER_OVERFLOW);
  CHECK(copied == 2 && memcmp(second, "45xy", 4) == 0);
  CHECK_STATUS(TdiCopyBufferToMdl("xyz", 0, 3, NULL, 0, &copied), STATUS_BUFFER_OVERFLOW);
  CHECK(copied == 0);
  CHECK_STATUS(TdiCopyMdlToBuffer(chain, 0, buffer, 0, sizeof buffer, &copied), STATUS_SUCCESS);
  CHECK(copied == 7 && memcmp(buffer, "12345xy", 7) == 0);
  CHECK_STATUS(TdiCopyMdlToBuffer(chain, 2, buffer, 0, 5, &copied), STATUS_SUCCESS);
  CHECK(copied == 5 && memcmp(buffer, "345xy", 5) == 0);
  CHECK_STATUS(TdiCopyMdlToBuffer(chain, 2, buffer, 0, 4, &copied), STATUS_BUFFER_OVERFLOW);
  CHECK(copied == 4);
  IoFreeMdl(chain->Next);
  IoFreeMdl(chain);
}

/* A chain that leads back to itself, with no bytes that would end it. */
static void EndlessChains(PPAIR Pair) {
  char data[1];
  PMDL chain = Memory(data, 0);
  SUBMITTED submitted;
  ULONG copied;
  PIRP irp;
  chain->Next = chain;
  CHECK_STATUS(TdiCopyBufferToMdl("xyz", 0, 3, chain, 0, &copied), STATUS_BUFFER_OVERFLOW);
  CHECK_STATUS(TdiCopyMdlToBuffer(chain, 0, data, 0, 1, &copied), STATUS_SUCCESS);
  irp = NewIrp(&Pair->Here, &submitted);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, chain, 0, 5);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_INVALID_PARAMETER);
  irp = NewIrp(&Pair->Here, &submitted);
  TdiBuildQueryInformation(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, TDI_QUERY_PROVIDER_INFO, chain);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_BUFFER_OVERFLOW);
  chain->Next = NULL;
  IoFreeMdl(chain);
}

/* All locked descriptions are freed with the IRP; a leak checker finds those that are not. The others stay the
 * client's. */
static void LockedParts(PPAIR Pair) {
  SUBMITTED submitted;
  PMDL own = Memory("b", 1);
  PIRP irp = NewIrp(&Pair->Here, &submitted);
  PMDL first = IoAllocateMdl("a", 1, FALSE, FALSE, irp);
  PMDL third;
  MmProbeAndLockPages(first, KernelMode, IoReadAccess);
  first->Next = own;
  third = IoAllocateMdl("c", 1, TRUE, FALSE, irp);
  CHECK(own->Next == third);
  MmProbeAndLockPages(third, KernelMode, IoReadAccess);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL, first, 0, 3);
  CHECK_STATUS(Run(&Pair->Here, &submitted), STATUS_SUCCESS);
  Expect(&Pair->There, "abc");
  CHECK(own->Next == NULL);
  IoFreeMdl(own);
}

static NTSTATUS NTAPI Counts(PDEVICE_OBJECT DeviceObject, PIRP Irp, PVOID Context) {
  UNREFERENCED_PARAMETER(DeviceObject);
  CHECK_STATUS(Irp->IoStatus.Status, STATUS_INVALID_PARAMETER);
  ++*(ULONG *)Context;
  return STATUS_SUCCESS;
}

/* A request for a device that is not of the transport completes, so that its client gets it back. */
static void ForeignDevice(PPAIR Pair) {
  SUBMITTED submitted;
  ULONG calls = 0;
  PIRP irp = NewIrp(&Pair->Here, &submitted);
  TdiBuildSend(irp, Pair->Here.Device, Pair->Here.File, Counts, &calls, NULL, 0, 0);
  submitted.First = IoCallDriver((PDEVICE_OBJECT)(PVOID)&submitted, irp);
  CHECK_STATUS(Finish(&submitted), STATUS_INVALID_PARAMETER);
  CHECK(calls == 1);
}

/* A file of one device is not taken by another one. */
static void FileOfAnotherDevice(PPAIR Pair) {
  PWSTR name = DeviceName;
  OPENED other;
  SUBMITTED submitted;
  PIRP irp;
  DeviceName = (PWSTR)(strcmp(DeviceText, "iwarp") == 0 ? L"\\Device\\SmbDirectLoopback" : L"\\Device\\SmbDirect");
  CHECK_STATUS(OpenFile(&other, NULL, NULL, 0, 0), STATUS_SUCCESS);
  DeviceName = name;
  irp = NewIrp(&other, &submitted);
  TdiBuildDisassociateAddress(irp, Pair->Here.Device, Pair->Here.File, NULL, NULL);
  CHECK_STATUS(Run(&other, &submitted), STATUS_INVALID_PARAMETER);
  CloseFile(&other);
}

/* A length of 0 is the rest of the source. */
static void PartialDescriptions(void) {
  char data[10];
  PMDL whole = Memory(data, sizeof data), part = IoAllocateMdl(data, sizeof data, FALSE, FALSE, NULL);
  IoBuildPartialMdl(whole, part, data + 3, 4);
  CHECK(MmGetMdlVirtualAddress(part) == data + 3 && MmGetMdlByteCount(part) == 4);
  IoBuildPartialMdl(whole, part, data + 3, 0);
  CHECK(MmGetMdlVirtualAddress(part) == data + 3 && MmGetMdlByteCount(part) == 7);
  CHECK(MmGetSystemAddressForMdlSafe(part, NormalPagePriority) == data + 3);
  IoFreeMdl(part);
  IoFreeMdl(whole);
}

int main(int argc, char **argv) {
  PAIR pair;
  SelectDevice(argc, argv);
  ConnectPair(&pair);
  Copies();
  EndlessChains(&pair);
  LockedParts(&pair);
  ForeignDevice(&pair);
  FileOfAnotherDevice(&pair);
  PartialDescriptions();
  ClosePair(&pair);
  printf("memory over %s: described and returned\n", DeviceText);
  return 0;
}
