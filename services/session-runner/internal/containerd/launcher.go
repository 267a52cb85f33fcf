package containerd

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
)

// A prepared container runs the launcher: a program of about 300 bytes that reads a start
// message from its standard input and then replaces itself, by execve(2), with the
// program that the message names. The bytes after the message remain in standard input
// for that program. The launcher makes no other system call, uses two pages of memory, and
// exits with launcherFailed if the message is invalid or the input ends, and with
// launcherNoProgram if the program cannot be executed.
//
// A start message is the contents of the launcher's memory from launcherMemory on: three 64-bit
// words (the size of the message, the address of argv and the address of envp), and then
// the pointers and strings of both lists.
const (
	launcherPath      = "/pack/launcher"
	launcherMemory    = 0x600000
	launcherCodeAt    = 0x400000
	launcherEntry     = launcherCodeAt + elfHeader + 3*elfSegment // address of the first instruction
	launcherMax       = 1 << 20                                   // maximum size of a message in bytes
	launcherHeader    = 24
	launcherPage      = 64 << 10 // largest page size of the architectures
	launcherFailed    = 125
	launcherNoProgram = 127
)

// Sizes of the file header and of a program header in an ELF file of 64 bits.
const (
	elfHeader  = 64
	elfSegment = 56
)

// launchers holds, by GOARCH, the ELF machine number and the launcher's machine code.
var launchers = map[string]struct {
	machine uint16
	code    []byte
}{
	"amd64": {62, launcherAMD64},
	"arm64": {183, launcherARM64},
}

// launcherCode is the launcher's machine code for this architecture, or nil if there is none. A
// container then runs the program itself as its first process.
var launcherCode = launchers[runtime.GOARCH].code

// launcherELF returns the launcher as a static ELF executable for the architecture, or nil if
// there is no launcher for it.
func launcherELF(goarch string) []byte { return elf(launchers[goarch].machine, launchers[goarch].code) }

// elf returns a static ELF executable of position-independent code for the architecture
// with the given machine number, or nil if code is nil.
func elf(machine uint16, code []byte) []byte {
	if code == nil {
		return nil
	}
	type phdr struct {
		Type, Flags                              uint32
		Off, VAddr, PAddr, FileSize, Size, Align uint64
	}
	const header, segment = elfHeader, elfSegment
	size := uint64(header + 3*segment + len(code))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}) // 64 bits, little-endian
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(launcherEntry), // static executable, version, entry
		uint64(header), uint64(0), uint32(0), uint16(header), uint16(segment), uint16(3), uint16(0), uint16(0), uint16(0),
		phdr{1, 5, 0, launcherCodeAt, launcherCodeAt, size, size, launcherPage},     // PT_LOAD, read and execute: this file
		phdr{1, 6, 0, launcherMemory, launcherMemory, 0, launcherMax, launcherPage}, // PT_LOAD, read and write: the message
		phdr{0x6474e551, 6, 0, 0, 0, 0, 0, 16},                                      // PT_GNU_STACK without execute
		code,
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // a Buffer never fails
	}
	return b.Bytes()
}

// startMessage returns the message that makes the launcher execute argv with the environment
// env. argv[0] is the path of the program. It returns an error if a string contains a
// zero byte or the message exceeds launcherMax.
func startMessage(argv, env []string) ([]byte, error) {
	pointers := make([]uint64, 0, len(argv)+len(env)+2)
	text := launcherHeader + 8*cap(pointers)
	var data []byte
	for _, list := range [][]string{argv, env} {
		for _, s := range list {
			if bytes.IndexByte([]byte(s), 0) >= 0 {
				return nil, fmt.Errorf("the command line or environment contains a zero byte in %q", s)
			}
			pointers = append(pointers, uint64(launcherMemory+text+len(data)))
			data = append(append(data, s...), 0)
		}
		pointers = append(pointers, 0)
	}
	size := text + len(data)
	if size > launcherMax {
		return nil, fmt.Errorf("the command line and environment have %d bytes, more than %d", size, launcherMax)
	}
	out := make([]byte, 0, size)
	for _, v := range append([]uint64{uint64(size), launcherMemory + launcherHeader, uint64(launcherMemory + launcherHeader + 8*(len(argv)+1))}, pointers...) {
		out = binary.LittleEndian.AppendUint64(out, v)
	}
	return append(out, data...), nil
}
