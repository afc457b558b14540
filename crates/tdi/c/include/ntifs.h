/* Drivers include this header or wdm.h. */
#ifndef SMBDIRECT_NTIFS_H
#define SMBDIRECT_NTIFS_H
#include <wdm.h>
#endif
