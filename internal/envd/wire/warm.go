package wire

import (
	"google.golang.org/protobuf/proto"

	gloveboxv1 "github.com/glovebox-dev/glovebox/internal/envd/wire/glovebox/v1"
	"github.com/glovebox-dev/glovebox/internal/envd/wire/process"
)

// Warm makes the runtime build what it needs for the messages of a command,
// which it otherwise does at their first use: on a fresh agent, and in a fresh
// host process, that would be in the middle of the first command. It is meant
// for a goroutine beside other work.
func Warm() {
	tag := "warm"
	for _, m := range []proto.Message{
		&process.StartRequest{Process: &process.ProcessConfig{Cmd: "w", Args: []string{"w"}, Envs: map[string]string{"w": "w"}, Cwd: &tag}},
		&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: 1}}}},
		&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: &process.ProcessEvent_DataEvent{
			Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: []byte{1}},
		}}}},
		&process.StartResponse{Event: &process.ProcessEvent{Event: &process.ProcessEvent_End{End: &process.ProcessEvent_EndEvent{ExitCode: 1}}}},
		&gloveboxv1.Limits{WallTimeNs: 1},
		&gloveboxv1.End{Code: 1, Usage: &gloveboxv1.Usage{CpuNs: 1}},
	} {
		if b, err := proto.Marshal(m); err == nil {
			_ = proto.Unmarshal(b, m.ProtoReflect().New().Interface())
		}
	}
}
