package containerd

// initCode is the machine code of the first process of a held sandbox (see held.go).
var initCode = []byte{
	0x48, 0x8b, 0x74, 0x24, 0x10, //             mov    rsi, [rsp+16]       ; argv[1], decimal digits
	0x31, 0xc0, //                               xor    eax, eax
	0x31, 0xc9, //                               xor    ecx, ecx
	0x8a, 0x0e, //                        digit: mov    cl, [rsi]
	0x84, 0xc9, //                               test   cl, cl
	0x74, 0x0e, //                               je     sleep
	0x48, 0x6b, 0xc0, 0x0a, //                   imul   rax, rax, 10
	0x48, 0x8d, 0x44, 0x08, 0xd0, //             lea    rax, [rax+rcx-48]
	0x48, 0xff, 0xc6, //                         inc    rsi
	0xeb, 0xec, //                               jmp    digit
	0x6a, 0x00, //                        sleep: push   0                   ; tv_nsec
	0x50,       //                               push   rax                 ; tv_sec
	0x6a, 0x00, //                               push   0                   ; sa_mask
	0x6a, 0x00, //                               push   0                   ; sa_restorer
	0x6a, 0x00, //                               push   0                   ; sa_flags
	0x6a, 0x01, //                               push   1                   ; sa_handler: SIG_IGN
	0x48, 0x89, 0xe6, //                         mov    rsi, rsp
	0xbf, 0x11, 0x00, 0x00, 0x00, //             mov    edi, 17             ; SIGCHLD
	0x31, 0xd2, //                               xor    edx, edx
	0x41, 0xba, 0x08, 0x00, 0x00, 0x00, //       mov    r10d, 8
	0xb8, 0x0d, 0x00, 0x00, 0x00, //             mov    eax, 13             ; rt_sigaction(2)
	0x0f, 0x05, //                               syscall
	0x48, 0x8d, 0x7c, 0x24, 0x20, //             lea    rdi, [rsp+32]
	0x31, 0xf6, //                               xor    esi, esi
	0xb8, 0x23, 0x00, 0x00, 0x00, //             mov    eax, 35             ; nanosleep(2)
	0x0f, 0x05, //                               syscall
	0x31, 0xff, //                               xor    edi, edi
	0xb8, 0xe7, 0x00, 0x00, 0x00, //             mov    eax, 231            ; exit_group(2)
	0x0f, 0x05, //                               syscall
}
