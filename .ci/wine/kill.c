/* kill -s NAME PID, for the tests of the command under Windows: KILL ends the process; each other name, such as
 * INT, sends Ctrl-C to the console of the process. The process has a console of its own (CREATE_NO_WINDOW), so
 * that nothing else is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static int failed(const char *what) {
  fprintf(stderr, "kill: %s: error %lu\n", what, GetLastError());
  return 1;
}

int main(int count, char **arguments) {
  if (count != 4 || strcmp(arguments[1], "-s") != 0) {
    fprintf(stderr, "usage: kill -s NAME PID\n");
    return 2;
  }
  DWORD id = strtoul(arguments[3], NULL, 10);
  if (strcmp(arguments[2], "KILL") == 0) {
    HANDLE process = OpenProcess(PROCESS_TERMINATE, FALSE, id);
    if (process == NULL || !TerminateProcess(process, 137)) return failed("TerminateProcess");
    return 0;
  }
  FreeConsole();
  if (!AttachConsole(id)) return failed("AttachConsole");
  /* This process is on the console too now. */
  SetConsoleCtrlHandler(NULL, TRUE);
  if (!GenerateConsoleCtrlEvent(CTRL_C_EVENT, 0)) return failed("GenerateConsoleCtrlEvent");
  return 0;
}
