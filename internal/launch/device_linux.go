package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/launch/sentry"
)

// The sandbox's end of its network in mode full. The wire has the same values;
// they are here again since the agent is set up before it has a wire.
const (
	deviceName    = "net0"
	deviceAddress = "192.0.0.2"
	deviceGateway = "192.0.0.1"
	deviceMTU     = 65520
)

// DeviceNode is where a host has the node of its tun driver.
const DeviceNode = "/dev/net/tun"

// FullResolvConf is the /etc/resolv.conf of a sandbox with Config.Full, for
// launchers that make that file themselves.
const FullResolvConf = "nameserver " + deviceGateway + "\noptions timeout:5 attempts:2\n"

// prepareDevice makes the sandbox's network device, while there still are the
// host's nodes and the right to change the network namespace.
func prepareDevice(cfg *Config) (*os.File, error) {
	if !cfg.Full {
		return nil, nil //nolint:nilnil // no device, and nothing wrong
	}
	switch cfg.Mode {
	case ModeRestricted, ModePlain:
		return nil, errors.New("the sandbox has no network namespace of its own")
	case ModeMapped, ModeSingle, ModeContained:
	}
	fd, err := openDevice(cfg)
	if err != nil {
		return nil, err
	}
	if err := configureDevice(fd, cfg); err != nil {
		unix.Close(fd) //nolint:errcheck // on the way out
		return nil, err
	}
	if cfg.Mode == ModeContained {
		if err := hideNode(); err != nil {
			unix.Close(fd) //nolint:errcheck // on the way out
			return nil, fmt.Errorf("%s: %w", DeviceNode, err)
		}
	}
	// Only now may it be waited for: before it is a device it always has an error.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd) //nolint:errcheck // on the way out
		return nil, err
	}
	return os.NewFile(uintptr(fd), deviceName), nil
}

// openDevice opens the node, which no command inherits.
func openDevice(cfg *Config) (int, error) {
	dir, name := unix.AT_FDCWD, DeviceNode
	if cfg.DevicesFD > 0 {
		dir, name = cfg.DevicesFD, filepath.Base(DeviceNode)
		defer unix.Close(dir) //nolint:errcheck // nothing to do about it
	}
	fd, err := unix.Openat(dir, name, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", DeviceNode, err)
	}
	return fd, nil
}

// hideNode takes the node from programs, in a container that has it.
//
// Security: without rights over the network they could do nothing with it, but
// reach a driver of the kernel's that they need not.
func hideNode() error {
	err := unix.Unlink(DeviceNode)
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY): // a bind mount, in an engine's user namespace
		return os.Chmod(DeviceNode, 0)
	default:
		return err
	}
}

func configureDevice(fd int, cfg *Config) error {
	ifr, err := unix.NewIfreq(deviceName)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return fmt.Errorf("make it: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s) //nolint:errcheck // nothing to do about it
	if cfg.Mode == ModeContained {
		if is, _ := sentry.Observe().GVisor(); is {
			return configureByNetlink(s)
		}
	}
	return configureByIoctl(s)
}

// configureByIoctl works where a filter lets no netlink socket through.
func configureByIoctl(s int) error {
	for _, step := range []struct {
		what string
		call uint
		set  func(*unix.Ifreq) error
	}{
		{"address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(four(deviceAddress)) }},
		{"netmask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 255, 255}) }},
		{"mtu", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(deviceMTU); return nil }},
		{"up", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error { r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING); return nil }},
	} {
		ifr, err := unix.NewIfreq(deviceName)
		if err == nil {
			err = step.set(ifr)
		}
		if err == nil {
			err = unix.IoctlIfreq(s, step.call, ifr)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return defaultRoute(s)
}

func four(addr string) []byte {
	a := netip.MustParseAddr(addr).As4()
	return a[:]
}

// rtentry is the kernel's, on 64-bit machines.
type rtentry struct {
	_                     uint64
	dst, gateway, genmask unix.RawSockaddrInet4
	flags                 uint16
	_                     [3]uint16
	_                     [2]uint64
	metric                int16
	_                     [3]uint16
	dev                   *byte
	_                     [3]uint64
}

// defaultRoute sends everything to the device.
func defaultRoute(s int) error {
	name, err := unix.BytePtrFromString(deviceName)
	if err != nil {
		return err
	}
	inet := unix.RawSockaddrInet4{Family: unix.AF_INET}
	rt := rtentry{dst: inet, gateway: inet, genmask: inet, flags: unix.RTF_UP, dev: name}
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCADDRT, uintptr(unsafe.Pointer(&rt))) //nolint:gosec // a system call's argument
	runtime.KeepAlive(&rt)
	if e != 0 {
		return fmt.Errorf("route: %w", e)
	}
	return nil
}

// configureByNetlink is for gVisor, which has nothing else.
func configureByNetlink(s int) error {
	ifr, err := unix.NewIfreq(deviceName)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(s, unix.SIOCGIFINDEX, ifr); err != nil {
		return fmt.Errorf("index: %w", err)
	}
	index := ifr.Uint32()
	n, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer unix.Close(n) //nolint:errcheck // nothing to do about it
	word := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	link := append([]byte{unix.AF_UNSPEC, 0, 0, 0}, word(index)...)
	link = append(append(link, word(unix.IFF_UP)...), word(unix.IFF_UP)...)
	address := append([]byte{unix.AF_INET, 32, 0, unix.RT_SCOPE_UNIVERSE}, word(index)...)
	route := append([]byte{unix.AF_INET, 0, 0, 0, unix.RT_TABLE_MAIN, unix.RTPROT_BOOT, unix.RT_SCOPE_LINK, unix.RTN_UNICAST}, word(0)...)
	for _, m := range []struct {
		what        string
		kind, flags uint16
		body        []byte
	}{
		{"mtu", unix.RTM_NEWLINK, 0, appendAttr(link, unix.IFLA_MTU, word(deviceMTU))},
		{"address", unix.RTM_NEWADDR, unix.NLM_F_CREATE, appendAttr(address, unix.IFA_LOCAL, four(deviceAddress))},
		{"route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE, appendAttr(appendAttr(route, unix.RTA_DST, four("0.0.0.0")), unix.RTA_OIF, word(index))},
	} {
		if err := netlinkCall(n, m.kind, m.flags, m.body); err != nil {
			return fmt.Errorf("%s: %w", m.what, err)
		}
	}
	return nil
}

func appendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.RTA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// netlinkCall sends one request and waits for its acknowledgement.
func netlinkCall(s int, kind, flags uint16, body []byte) error {
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	msg = append(append(msg, make([]byte, 8)...), body...)
	if err := unix.Sendto(s, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	buf := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, buf, 0)
	switch {
	case err != nil:
		return err
	case n < unix.SizeofNlMsghdr+4 || binary.NativeEndian.Uint16(buf[4:]) != unix.NLMSG_ERROR:
		return errors.New("no acknowledgement")
	}
	if e := int32(binary.NativeEndian.Uint32(buf[unix.SizeofNlMsghdr:])); e != 0 {
		return unix.Errno(-e)
	}
	return nil
}
