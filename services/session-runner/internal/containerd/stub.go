package containerd

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// A prepared container runs the stub: a program of about 300 bytes that reads a start
// message from its standard input and then replaces itself, by execve(2), with the
// program that the message names. The bytes after the message remain in standard input
// for that program. The stub makes no other system call, uses two pages of memory, and
// exits with stubFailed if the message is invalid or the input ends, and with
// stubNoProgram if the program cannot be executed.
//
// A start message is the contents of the stub's memory from stubMemory on: three 64-bit
// words (the size of the message, the address of argv and the address of envp), and then
// the pointers and strings of both lists.
const (
	stubPath      = "/pack/stub"
	stubMemory    = 0x600000
	stubCodeAt    = 0x400000
	stubMax       = 1 << 20 // maximum size of a message in bytes
	stubHeader    = 24
	stubFailed    = 125
	stubNoProgram = 127
)

// stubELF returns the stub as a static ELF executable, or nil on an architecture that has
// no stub.
func stubELF() []byte {
	if stubCode == nil {
		return nil
	}
	const header, segment = 64, 56
	type phdr struct {
		Type, Flags                              uint32
		Off, VAddr, PAddr, FileSize, Size, Align uint64
	}
	size := uint64(header + 3*segment + len(stubCode))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // 64 bits, little-endian
	for _, v := range []any{
		uint16(2), stubMachine, uint32(1), uint64(stubCodeAt + header + 3*segment), // static executable, version, entry
		uint64(header), uint64(0), uint32(0), uint16(header), uint16(segment), uint16(3), uint16(0), uint16(0), uint16(0),
		phdr{1, 5, 0, stubCodeAt, stubCodeAt, size, size, 4096}, // PT_LOAD, read and execute: this file
		phdr{1, 6, 0, stubMemory, stubMemory, 0, stubMax, 4096}, // PT_LOAD, read and write: the message
		phdr{0x6474e551, 6, 0, 0, 0, 0, 0, 16},                  // PT_GNU_STACK without execute
		stubCode,
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer never fails
	}
	return b.Bytes()
}

// startMessage returns the message that makes the stub execute argv with the environment
// env. argv[0] is the path of the program. It returns an error if a string contains a
// zero byte or the message exceeds stubMax.
func startMessage(argv, env []string) ([]byte, error) {
	pointers := make([]uint64, 0, len(argv)+len(env)+2)
	text := stubHeader + 8*cap(pointers)
	var data []byte
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			if bytes.IndexByte([]byte(s), 0) >= 0 {
				return nil, fmt.Errorf("the command line or environment contains a zero byte in %q", s)
			}
			pointers = append(pointers, uint64(stubMemory+text+len(data)))
			data = append(append(data, s...), 0)
		}
		pointers = append(pointers, 0)
	}
	size := text + len(data)
	if size > stubMax {
		return nil, fmt.Errorf("the command line and environment have %d bytes, more than %d", size, stubMax)
	}
	out := make([]byte, 0, size)
	for _, v := range append([]uint64{uint64(size), stubMemory + stubHeader, uint64(stubMemory + stubHeader + 8*(len(argv)+1))}, pointers...) {
		out = binary.LittleEndian.AppendUint64(out, v)
	}
	return append(out, data...), nil
}
