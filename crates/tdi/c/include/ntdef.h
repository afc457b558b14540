/* The basic types of Windows, with the sizes that they have there.
 *
 * Programs have to be compiled with -fshort-wchar, because a WCHAR of Windows has 16 bits and so does each character
 * of a literal like L"\\Device\\SmbDirect". */
#ifndef SMBDIRECT_NTDEF_H
#define SMBDIRECT_NTDEF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __SIZEOF_WCHAR_T__ != 2
#error "compile with -fshort-wchar: WCHAR has 16 bits"
#endif

/* Words of declarations that have no effect here. */
#ifndef IN
#define IN
#endif
#ifndef OUT
#define OUT
#endif
#ifndef OPTIONAL
#define OPTIONAL
#endif
#define NTAPI
#define NTSYSAPI
#define NTKERNELAPI
#define DECLSPEC_IMPORT
#define UNALIGNED
#define CONST const
#define FORCEINLINE static inline
#define __stdcall
#define __cdecl
#define POINTER_ALIGNMENT __attribute__((aligned(sizeof(void *))))

#ifndef VOID
#define VOID void
#endif
typedef void *PVOID;
typedef char CHAR, *PCHAR, CCHAR, *PSTR;
typedef const char *PCSTR;
typedef unsigned char UCHAR, *PUCHAR, BOOLEAN, *PBOOLEAN;
typedef int16_t SHORT, *PSHORT, CSHORT;
typedef uint16_t USHORT, *PUSHORT;
typedef int32_t INT, *PINT, LONG, *PLONG, NTSTATUS, *PNTSTATUS;
typedef uint32_t UINT, *PUINT, ULONG, *PULONG, ACCESS_MASK, *PACCESS_MASK;
typedef int64_t LONGLONG, *PLONGLONG;
typedef uint64_t ULONGLONG, *PULONGLONG;
typedef intptr_t LONG_PTR, *PLONG_PTR;
typedef uintptr_t ULONG_PTR, *PULONG_PTR, SIZE_T, *PSIZE_T;
typedef wchar_t WCHAR, *PWCHAR, *PWSTR;
typedef const wchar_t *PCWSTR;
typedef PVOID HANDLE, *PHANDLE;

#define TRUE 1
#define FALSE 0

typedef union _LARGE_INTEGER {
  __extension__ struct {
    ULONG LowPart;
    LONG HighPart;
  };
  struct {
    ULONG LowPart;
    LONG HighPart;
  } u;
  LONGLONG QuadPart;
} LARGE_INTEGER, *PLARGE_INTEGER;

typedef union _ULARGE_INTEGER {
  __extension__ struct {
    ULONG LowPart;
    ULONG HighPart;
  };
  struct {
    ULONG LowPart;
    ULONG HighPart;
  } u;
  ULONGLONG QuadPart;
} ULARGE_INTEGER, *PULARGE_INTEGER;

typedef struct _UNICODE_STRING {
  USHORT Length;        /* in bytes */
  USHORT MaximumLength; /* in bytes */
  PWSTR Buffer;
} UNICODE_STRING, *PUNICODE_STRING;
typedef const UNICODE_STRING *PCUNICODE_STRING;

typedef struct _LIST_ENTRY {
  struct _LIST_ENTRY *Flink;
  struct _LIST_ENTRY *Blink;
} LIST_ENTRY, *PLIST_ENTRY;

typedef struct _OBJECT_ATTRIBUTES {
  ULONG Length;
  HANDLE RootDirectory;
  PUNICODE_STRING ObjectName;
  ULONG Attributes;
  PVOID SecurityDescriptor;
  PVOID SecurityQualityOfService;
} OBJECT_ATTRIBUTES, *POBJECT_ATTRIBUTES;

#define OBJ_CASE_INSENSITIVE 0x00000040
#define OBJ_KERNEL_HANDLE 0x00000200

#define InitializeObjectAttributes(p, n, a, r, s) \
  {                                               \
    (p)->Length = sizeof(OBJECT_ATTRIBUTES);      \
    (p)->RootDirectory = (r);                     \
    (p)->ObjectName = (n);                        \
    (p)->Attributes = (a);                        \
    (p)->SecurityDescriptor = (s);                \
    (p)->SecurityQualityOfService = NULL;         \
  }

#define FIELD_OFFSET(type, field) ((LONG)offsetof(type, field))
#define CONTAINING_RECORD(address, type, field) ((type *)((char *)(address) - offsetof(type, field)))
#define UNREFERENCED_PARAMETER(parameter) ((void)(parameter))
#define PAGED_CODE()

#define RtlCopyMemory(destination, source, length) memcpy((destination), (source), (length))
#define RtlMoveMemory(destination, source, length) memmove((destination), (source), (length))
#define RtlFillMemory(destination, length, fill) memset((destination), (fill), (length))
#define RTL_CONSTANT_STRING(text) {sizeof(text) - sizeof((text)[0]), sizeof(text), (text)}
#define RtlUshortByteSwap(value) __builtin_bswap16((USHORT)(value))
#define RtlUlongByteSwap(value) __builtin_bswap32((ULONG)(value))
#define RtlUlonglongByteSwap(value) __builtin_bswap64((ULONGLONG)(value))
#define RtlZeroMemory(destination, length) memset((destination), 0, (length))
#define RtlEqualMemory(left, right, length) (memcmp((left), (right), (length)) == 0)

/* Returns the number of equal bytes at the start. */
FORCEINLINE SIZE_T RtlCompareMemory(const VOID *Source1, const VOID *Source2, SIZE_T Length) {
  SIZE_T equal = 0;
  while (equal < Length && ((const UCHAR *)Source1)[equal] == ((const UCHAR *)Source2)[equal])
    equal++;
  return equal;
}

FORCEINLINE VOID RtlInitUnicodeString(PUNICODE_STRING DestinationString, PCWSTR SourceString) {
  USHORT characters = 0;
  while (SourceString != NULL && SourceString[characters] != 0)
    characters++;
  DestinationString->Buffer = (PWSTR)(ULONG_PTR)SourceString;
  DestinationString->Length = (USHORT)(characters * sizeof(WCHAR));
  DestinationString->MaximumLength =
      SourceString == NULL ? 0 : (USHORT)(DestinationString->Length + sizeof(WCHAR));
}

FORCEINLINE VOID InitializeListHead(PLIST_ENTRY ListHead) {
  ListHead->Flink = ListHead->Blink = ListHead;
}

FORCEINLINE BOOLEAN IsListEmpty(const LIST_ENTRY *ListHead) {
  return (BOOLEAN)(ListHead->Flink == ListHead);
}

FORCEINLINE BOOLEAN RemoveEntryList(PLIST_ENTRY Entry) {
  Entry->Blink->Flink = Entry->Flink;
  Entry->Flink->Blink = Entry->Blink;
  return (BOOLEAN)(Entry->Flink == Entry->Blink);
}

FORCEINLINE PLIST_ENTRY RemoveHeadList(PLIST_ENTRY ListHead) {
  PLIST_ENTRY first = ListHead->Flink;
  RemoveEntryList(first);
  return first;
}

FORCEINLINE PLIST_ENTRY RemoveTailList(PLIST_ENTRY ListHead) {
  PLIST_ENTRY last = ListHead->Blink;
  RemoveEntryList(last);
  return last;
}

FORCEINLINE VOID InsertTailList(PLIST_ENTRY ListHead, PLIST_ENTRY Entry) {
  Entry->Flink = ListHead;
  Entry->Blink = ListHead->Blink;
  ListHead->Blink->Flink = Entry;
  ListHead->Blink = Entry;
}

FORCEINLINE VOID InsertHeadList(PLIST_ENTRY ListHead, PLIST_ENTRY Entry) {
  Entry->Blink = ListHead;
  Entry->Flink = ListHead->Flink;
  ListHead->Flink->Blink = Entry;
  ListHead->Flink = Entry;
}

FORCEINLINE LONG InterlockedIncrement(volatile LONG *Addend) {
  return __atomic_add_fetch(Addend, 1, __ATOMIC_SEQ_CST);
}

FORCEINLINE LONG InterlockedDecrement(volatile LONG *Addend) {
  return __atomic_sub_fetch(Addend, 1, __ATOMIC_SEQ_CST);
}

FORCEINLINE LONG InterlockedExchange(volatile LONG *Target, LONG Value) {
  return __atomic_exchange_n(Target, Value, __ATOMIC_SEQ_CST);
}

FORCEINLINE PVOID InterlockedExchangePointer(PVOID volatile *Target, PVOID Value) {
  return __atomic_exchange_n(Target, Value, __ATOMIC_SEQ_CST);
}

FORCEINLINE PVOID InterlockedCompareExchangePointer(PVOID volatile *Destination, PVOID Exchange, PVOID Comperand) {
  __atomic_compare_exchange_n(Destination, &Comperand, Exchange, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return Comperand;
}

FORCEINLINE LONG InterlockedExchangeAdd(volatile LONG *Addend, LONG Value) {
  return __atomic_fetch_add(Addend, Value, __ATOMIC_SEQ_CST);
}

FORCEINLINE LONG InterlockedCompareExchange(volatile LONG *Destination, LONG Exchange, LONG Comperand) {
  __atomic_compare_exchange_n(Destination, &Comperand, Exchange, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  return Comperand;
}

#endif
