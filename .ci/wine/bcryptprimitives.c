/* ProcessPrng for versions of Wine that have no bcryptprimitives.dll (Wine 8; later versions have it). Rust's
 * standard library imports this function. Windows itself never loads this file. */
#include <windows.h>

BOOLEAN WINAPI SystemFunction036(PVOID buffer, ULONG length); /* RtlGenRandom, in advapi32 */

__declspec(dllexport) BOOL WINAPI ProcessPrng(BYTE *data, SIZE_T length) {
  while (length > 0) {
    ULONG part = length > 0x10000 ? 0x10000 : (ULONG)length;
    if (!SystemFunction036(data, part)) return FALSE;
    data += part;
    length -= part;
  }
  return TRUE;
}
