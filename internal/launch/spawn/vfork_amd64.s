#include "textflag.h"

// func vforkSyscall(trap, a1, a2, a3 uintptr) (r1, errno uintptr)
//
// clone(2) or clone3(2) with a shared address space: the child runs on the
// parent's stack while the parent waits, and overwrites the return address
// there. So the address is kept in a register, which each side has a copy of.
TEXT ·vforkSyscall(SB), NOSPLIT|NOFRAME, $0-48
	MOVQ trap+0(FP), AX
	MOVQ a1+8(FP), DI
	MOVQ a2+16(FP), SI
	MOVQ a3+24(FP), DX
	XORQ R10, R10
	XORQ R8, R8
	XORQ R9, R9
	POPQ R12
	SYSCALL
	PUSHQ R12
	CMPQ AX, $0xfffffffffffff001
	JCC  failed
	MOVQ AX, r1+32(FP)
	MOVQ $0, errno+40(FP)
	RET
failed:
	NEGQ AX
	MOVQ $-1, r1+32(FP)
	MOVQ AX, errno+40(FP)
	RET
