module github.com/glovebox-dev/glovebox

go 1.26

require (
	connectrpc.com/connect v1.21.1
	google.golang.org/protobuf v1.36.11
)
