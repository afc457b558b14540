/* Uses of IRPs that a debugging kernel stops. The second argument says which; the program does not come to its end. */
#include "client.h"

int main(int argc, char **argv) {
  PAIR pair;
  char buffer[8];
  PMDL mdl;
  PIRP irp;
  KEVENT event;
  KIRQL irql;
  LARGE_INTEGER pause;
  SelectDevice(argc, argv);
  CHECK(argc > 2);
  ConnectPair(&pair);
  mdl = IoAllocateMdl(buffer, sizeof buffer, FALSE, FALSE, NULL);
  MmBuildMdlForNonPagedPool(mdl);
  irp = IoAllocateIrp(2, FALSE);
  TdiBuildReceive(irp, pair.There.Device, pair.There.File, NULL, NULL, mdl, 0, sizeof buffer);
  CHECK_STATUS(IoCallDriver(pair.There.Device, irp), STATUS_PENDING);
  KeInitializeEvent(&event, NotificationEvent, FALSE);
  if (strcmp(argv[2], "IoCallDriver") == 0)
    IoCallDriver(pair.There.Device, irp);
  else if (strcmp(argv[2], "IoFreeIrp") == 0)
    IoFreeIrp(irp);
  else if (strcmp(argv[2], "IoReuseIrp") == 0)
    IoReuseIrp(irp, STATUS_SUCCESS);
  else if (strcmp(argv[2], "IoCompleteRequest") == 0)
    IoCompleteRequest(irp, IO_NO_INCREMENT);
  else if (strcmp(argv[2], "KeLowerIrql") == 0)
    KeLowerIrql(DISPATCH_LEVEL);
  else if (strcmp(argv[2], "KeRaiseIrql") == 0) {
    KeRaiseIrql(DISPATCH_LEVEL, &irql);
    KeRaiseIrql(PASSIVE_LEVEL, &irql);
  } else if (strcmp(argv[2], "KeWaitForSingleObject") == 0) {
    KeRaiseIrql(DISPATCH_LEVEL, &irql);
    KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, NULL);
  } else if (strcmp(argv[2], "KeDelayExecutionThread") == 0) {
    KeRaiseIrql(DISPATCH_LEVEL, &irql);
    pause.QuadPart = -1;
    KeDelayExecutionThread(KernelMode, FALSE, &pause);
  } else if (strcmp(argv[2], "KeFlushQueuedDpcs") == 0) {
    KeRaiseIrql(DISPATCH_LEVEL, &irql);
    KeFlushQueuedDpcs();
  } else if (strcmp(argv[2], "assertion failed") == 0) {
    ASSERT(irp == NULL);
  }
  return 0;
}
