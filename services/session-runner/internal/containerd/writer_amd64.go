package containerd

// writerCode is the machine code of the program that copies its standard input to a file which does
// not exist yet and which its user alone may read (see held_write.go).
var writerCode = []byte{
	0x48, 0x8b, 0x7c, 0x24, 0x10, //             mov    rdi, [rsp+16]       ; argv[1]
	0xbe, 0xc1, 0x00, 0x00, 0x00, //             mov    esi, 0xc1           ; O_WRONLY, O_CREAT, O_EXCL
	0xba, 0x00, 0x01, 0x00, 0x00, //             mov    edx, 0x100          ; mode 0400
	0xb8, 0x02, 0x00, 0x00, 0x00, //             mov    eax, 2              ; open(2)
	0x0f, 0x05, //                               syscall
	0x85, 0xc0, //                               test   eax, eax
	0x78, 0x31, //                               js     fail
	0x89, 0xc3, //                               mov    ebx, eax
	0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00, // sub    rsp, 4096
	0x31, 0xff, //                         next: xor    edi, edi
	0x48, 0x89, 0xe6, //                         mov    rsi, rsp
	0xba, 0x00, 0x10, 0x00, 0x00, //             mov    edx, 4096
	0x31, 0xc0, //                               xor    eax, eax            ; read(2)
	0x0f, 0x05, //                               syscall
	0x85, 0xc0, //                               test   eax, eax
	0x78, 0x16, //                               js     fail
	0x74, 0x1b, //                               je     done
	0x89, 0xc2, //                               mov    edx, eax
	0x89, 0xc5, //                               mov    ebp, eax
	0x89, 0xdf, //                               mov    edi, ebx
	0x48, 0x89, 0xe6, //                         mov    rsi, rsp
	0xb8, 0x01, 0x00, 0x00, 0x00, //             mov    eax, 1              ; write(2)
	0x0f, 0x05, //                               syscall
	0x39, 0xe8, //                               cmp    eax, ebp
	0x74, 0xd8, //                               je     next
	0xbf, 0x7e, 0x00, 0x00, 0x00, //       fail: mov    edi, 126
	0xeb, 0x02, //                               jmp    out
	0x31, 0xff, //                         done: xor    edi, edi
	0xb8, 0xe7, 0x00, 0x00, 0x00, //        out: mov    eax, 231            ; exit_group(2)
	0x0f, 0x05, //                               syscall
}
