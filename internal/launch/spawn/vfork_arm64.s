#include "textflag.h"

// func vforkSyscall(trap, a1, a2, a3 uintptr) (r1, errno uintptr)
//
// clone(2) or clone3(2) with a shared address space. The return address is in
// R30, of which parent and child each have a copy; nothing of this frame is on
// the shared stack.
TEXT ·vforkSyscall(SB), NOSPLIT|NOFRAME, $0-48
	MOVD trap+0(FP), R8
	MOVD a1+8(FP), R0
	MOVD a2+16(FP), R1
	MOVD a3+24(FP), R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD ZR, R5
	SVC
	CMN  $4095, R0
	BCC  ok
	NEG  R0, R0
	MOVD $-1, R1
	MOVD R1, r1+32(FP)
	MOVD R0, errno+40(FP)
	RET
ok:
	MOVD R0, r1+32(FP)
	MOVD ZR, errno+40(FP)
	RET
