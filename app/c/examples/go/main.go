// A network for a guest behind a packet socket, by cgo. The guest sends an ARP request for its gateway, and receives the reply.
//
//	cargo xtask library
//	cd app/c/examples/go
//	PKG_CONFIG_PATH=$PWD/../../../../target/library/lib/pkgconfig go run .
package main

// #cgo pkg-config: pontoon
// #include <stdlib.h>
// #include <pontoon.h>
import "C"

import (
	"errors"
	"fmt"
	"log"
	"runtime"
	"syscall"
	"unsafe"
)

// check returns the error of a call in this thread.
func check(result C.int) error {
	if result < 0 {
		return errors.New(C.GoString(C.pontoon_error_text()))
	}
	return nil
}

func set(options *C.struct_pontoon_options, name, value string) error {
	cName, cValue := C.CString(name), C.CString(value)
	defer C.free(unsafe.Pointer(cName))
	defer C.free(unsafe.Pointer(cValue))
	return check(C.pontoon_options_set(options, cName, cValue))
}

func run() error {
	// The text of an error belongs to the thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	options := C.pontoon_options_new()
	defer C.pontoon_options_free(options)
	for name, value := range map[string]string{"ipv4": "10.0.2.0/24", "allow": "*.example.org:443/tcp"} {
		if err := set(options, name, value); err != nil {
			return err
		}
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	if err != nil {
		return err
	}
	var network *C.struct_pontoon_network
	if err := check(C.pontoon_network_attach(&network, options, C.PONTOON_PACKET, C.int(pair[1]))); err != nil {
		return err
	}
	defer C.pontoon_network_stop(network)
	syscall.Close(pair[1])

	guest := []byte{2, 0, 0, 0, 0, 1}
	frame := append([]byte{255, 255, 255, 255, 255, 255}, guest...)
	frame = append(frame, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	frame = append(append(frame, guest...), 10, 0, 2, 15)
	frame = append(frame, 0, 0, 0, 0, 0, 0, 10, 0, 2, 2)
	if _, err := syscall.Write(pair[0], frame); err != nil {
		return err
	}
	reply := make([]byte, 2048)
	for {
		length, err := syscall.Read(pair[0], reply)
		if err != nil || length == 0 {
			return fmt.Errorf("the network has ended: %v", err)
		}
		if reply[12] == 8 && reply[13] == 6 {
			fmt.Printf("the gateway is at % x\n", reply[22:28])
			return nil
		}
	}
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
