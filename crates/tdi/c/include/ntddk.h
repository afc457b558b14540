/* Drivers include this header or wdm.h. */
#ifndef SMBDIRECT_NTDDK_H
#define SMBDIRECT_NTDDK_H
#include <wdm.h>
#endif
