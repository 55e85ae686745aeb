package launch

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// EgressResolvConf is the /etc/resolv.conf of a sandbox with Config.Egress, for
// launchers that make that file themselves.
const EgressResolvConf = "nameserver 127.0.0.1\noptions timeout:5 attempts:1\n"

// prepareEgress lets the agent listen on the ports that programs expect, before
// there is a /proc in which nobody may change that.
func prepareEgress(cfg *Config) error {
	if !cfg.Egress {
		return nil
	}
	switch cfg.Mode {
	case ModeRestricted, ModePlain:
		return errors.New("egress: the sandbox has no network namespace of its own")
	case ModeMapped, ModeSingle, ModeContained:
	}
	cfg.bindLow = !openLowPorts() && permitted(unix.CAP_NET_BIND_SERVICE)
	return nil
}

// permitted tells whether the calling thread may have a capability. Without it
// and without low ports the agent's start fails where it listens.
func permitted(capability int) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&hdr, &data[0])
	return err == nil && data[capability/32].Permitted&(1<<(capability%32)) != 0
}

// openLowPorts makes every port of the calling thread's network namespace one
// that anybody in it may listen on.
func openLowPorts() bool {
	const file = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
	if now, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(now)) == "0" {
		return true
	}
	f, err := os.OpenFile(file, os.O_WRONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer f.Close() //nolint:errcheck // written in one call
	_, err = f.WriteString("0\n")
	return err == nil
}

// egressFiles are those of /etc that differ with Config.Egress and Full.
func egressFiles(cfg *Config) map[string][]byte {
	if text := cfg.ResolvConf(); text != "" {
		return map[string][]byte{"resolv.conf": []byte(text)}
	}
	return nil
}

// ResolvConf is the sandbox's /etc/resolv.conf; "" without a network.
func (cfg *Config) ResolvConf() string {
	switch {
	case cfg.Egress:
		return EgressResolvConf
	case cfg.Full:
		return FullResolvConf
	default:
		return ""
	}
}
