package containerd

// launcherMachine is the ELF machine number of the architecture.
const launcherMachine = uint16(62)

// launcherCode is the machine code of the launcher (see launcher.go). It can be anywhere in memory.
var launcherCode = []byte{
	0xbb, 0x00, 0x00, 0x60, 0x00, //             mov    ebx, 0x600000    ; launcherMemory
	0x41, 0xbc, 0x18, 0x00, 0x00, 0x00, //       mov    r12d, 24         ; bytes to read: first the header
	0x45, 0x31, 0xed, //                         xor    r13d, r13d       ; bytes read
	0x31, 0xc0, //                         read: xor    eax, eax         ; read(2)
	0x31, 0xff, //                               xor    edi, edi         ; standard input
	0x4a, 0x8d, 0x34, 0x2b, //                   lea    rsi, [rbx+r13]
	0x4c, 0x89, 0xe2, //                         mov    rdx, r12
	0x4c, 0x29, 0xea, //                         sub    rdx, r13
	0x0f, 0x05, //                               syscall
	0x48, 0x83, 0xf8, 0xfc, //                   cmp    rax, -4          ; EINTR
	0x74, 0xea, //                               je     read
	0x48, 0x85, 0xc0, //                         test   rax, rax
	0x7e, 0x20, //                               jle    fail             ; an error, or the input ended
	0x49, 0x01, 0xc5, //                         add    r13, rax
	0x4d, 0x39, 0xe5, //                         cmp    r13, r12
	0x72, 0xdd, //                               jb     read
	0x49, 0x83, 0xfc, 0x18, //                   cmp    r12, 24
	0x77, 0x19, //                               ja     run              ; the whole message was read
	0x4c, 0x8b, 0x23, //                         mov    r12, [rbx]       ; size of the message
	0x49, 0x83, 0xfc, 0x18, //                   cmp    r12, 24
	0x76, 0x09, //                               jbe    fail
	0x49, 0x81, 0xfc, 0x00, 0x00, 0x10, 0x00, // cmp    r12, 0x100000    ; launcherMax
	0x76, 0xc5, //                               jbe    read
	0xbf, 0x7d, 0x00, 0x00, 0x00, //       fail: mov    edi, 125         ; launcherFailed
	0xeb, 0x17, //                               jmp    exit
	0x48, 0x8b, 0x73, 0x08, //             run:  mov    rsi, [rbx+8]     ; argv
	0x48, 0x8b, 0x3e, //                         mov    rdi, [rsi]       ; argv[0]
	0x48, 0x8b, 0x53, 0x10, //                   mov    rdx, [rbx+16]    ; envp
	0xb8, 0x3b, 0x00, 0x00, 0x00, //             mov    eax, 59          ; execve(2)
	0x0f, 0x05, //                               syscall
	0xbf, 0x7f, 0x00, 0x00, 0x00, //             mov    edi, 127         ; launcherNoProgram
	0xb8, 0xe7, 0x00, 0x00, 0x00, //       exit: mov    eax, 231         ; exit_group(2)
	0x0f, 0x05, //                               syscall
}
