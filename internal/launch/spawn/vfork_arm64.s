#include "textflag.h"

// func vforkClone(flags uintptr, pidfd *int32) (pid uintptr, errno uintptr)
//
// clone(2) with a shared address space. The return address is in R30, of
// which parent and child each have a copy; nothing of this frame is on the
// shared stack.
TEXT ·vforkClone(SB), NOSPLIT|NOFRAME, $0-32
	MOVD flags+0(FP), R0
	MOVD pidfd+8(FP), R2
	MOVD ZR, R1
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $220, R8       // SYS_clone
	SVC
	CMN  $4095, R0
	BCC  ok
	NEG  R0, R0
	MOVD $-1, R1
	MOVD R1, pid+16(FP)
	MOVD R0, errno+24(FP)
	RET
ok:
	MOVD R0, pid+16(FP)
	MOVD ZR, errno+24(FP)
	RET
