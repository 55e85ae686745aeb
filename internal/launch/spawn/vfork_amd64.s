#include "textflag.h"

// func vforkClone(flags uintptr, pidfd *int32) (pid uintptr, errno uintptr)
//
// clone(2) with a shared address space: the child runs on the parent's stack
// while the parent waits, and overwrites the return address there. So the
// address is kept in a register, which each side has a copy of.
TEXT ·vforkClone(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ flags+0(FP), DI
	MOVQ pidfd+8(FP), DX
	XORQ SI, SI
	XORQ R10, R10
	XORQ R8, R8
	MOVQ $56, AX        // SYS_clone
	POPQ R12
	SYSCALL
	PUSHQ R12
	CMPQ AX, $0xfffffffffffff001
	JCC  failed
	MOVQ AX, pid+16(FP)
	MOVQ $0, errno+24(FP)
	RET
failed:
	NEGQ AX
	MOVQ $-1, pid+16(FP)
	MOVQ AX, errno+24(FP)
	RET
