package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// archCalls lists the allowed system calls of this architecture that are not in
// commonCalls.
var archCalls = []uintptr{unix.SYS_FSTATAT, unix.SYS_RENAMEAT}
