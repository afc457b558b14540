// An SMB client in Go over SMB Direct: go-smb2 takes any net.Conn, and smbdirect_connect_stream returns a socket.
//
//	smb2 SERVER SHARE USER PASSWORD [tcp]
//
// Writes files, lists and reads them, renames one and deletes them, and prints how each step ended. Data goes in
// messages. `tcp` connects by TCP instead. To build it with Debian's golang and golang-github-hirochachacha-go-smb2-dev:
//
//	GO111MODULE=off GOPATH=/usr/share/gocode CGO_CFLAGS=... CGO_LDFLAGS=... go build smb2.go
//
// with the output of `pkg-config --cflags smbdirect` and `pkg-config --libs smbdirect`.
package main

// #include <smbdirect.h>
// #include <stdlib.h>
import "C"

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"net"
	"os"
	"unsafe"

	"github.com/hirochachacha/go-smb2"
)

// dial connects to a server by SMB Direct.
func dial(address string) (net.Conn, error) {
	var settings C.struct_smbdirect_settings
	C.smbdirect_settings_init(&settings, C.sizeof_struct_smbdirect_settings, C.SMBDIRECT_PROFILE_DEFAULT)
	// The answer to a READ of Samba's largest size has to fit in a message.
	settings.max_fragmented_receive_size = 8<<20 + 1<<16
	where := C.CString(address)
	defer C.free(unsafe.Pointer(where))
	var fd C.int
	var failure C.struct_smbdirect_error
	if C.smbdirect_connect_stream(nil, where, &settings, 10000, nil, &fd, &failure) != 0 {
		return nil, errors.New(C.GoString(&failure.message[0]))
	}
	socket := os.NewFile(uintptr(fd), address)
	// FileConn duplicates the descriptor.
	defer socket.Close()
	return net.FileConn(socket)
}

func mount(server, share, user, password string, tcp bool) (*smb2.Share, error) {
	connect := dial
	if tcp {
		connect = func(server string) (net.Conn, error) { return net.Dial("tcp", net.JoinHostPort(server, "445")) }
	}
	connection, err := connect(server)
	if err != nil {
		return nil, err
	}
	dialer := smb2.Dialer{Initiator: &smb2.NTLMInitiator{User: user, Password: password}}
	session, err := dialer.Dial(connection)
	if err != nil {
		return nil, err
	}
	return session.Mount(share)
}

func step(name string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		fmt.Println(name, "error")
		return
	}
	fmt.Println(name, "ok")
}

// list compares the names and sizes on the share.
func list(share *smb2.Share, files map[string][]byte) error {
	entries, err := share.ReadDir(".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if data, known := files[entry.Name()]; !known || int64(len(data)) != entry.Size() {
			return fmt.Errorf("%s has %d bytes", entry.Name(), entry.Size())
		}
	}
	if len(entries) != len(files) {
		return fmt.Errorf("%d files", len(entries))
	}
	return nil
}

func compare(share *smb2.Share, name string, data []byte) error {
	read, err := share.ReadFile(name)
	if err == nil && !bytes.Equal(read, data) {
		err = errors.New("other bytes came back")
	}
	return err
}

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "smb2 SERVER SHARE USER PASSWORD [tcp]")
		os.Exit(2)
	}
	share, err := mount(os.Args[1], os.Args[2], os.Args[3], os.Args[4], len(os.Args) > 5)
	step("connect", err)
	if err != nil {
		return
	}
	names, files := []string{}, map[string][]byte{}
	for _, size := range []int{0, 1, 4095, 65537, 1 << 20, 3145729} {
		name, data := fmt.Sprintf("f%d", size), make([]byte, size)
		rand.New(rand.NewSource(int64(size))).Read(data)
		names, files[name] = append(names, name), data
		step("write-"+name, share.WriteFile(name, data, 0o644))
	}
	step("list", list(share, files))
	for _, name := range names {
		step("read-"+name, compare(share, name, files[name]))
	}
	last := names[len(names)-1]
	step("rename", share.Rename(last, "renamed"))
	step("read-renamed", compare(share, "renamed", files[last]))
	for _, name := range append(names[:len(names)-1], "renamed") {
		step("delete-"+name, share.Remove(name))
	}
	step("list-empty", list(share, nil))
}
