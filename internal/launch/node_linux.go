package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The node of the kernel's tun driver.
const deviceMajor, deviceMinor = 10, 200

// DeviceProblem says why no sandbox can have a network device here, and what to
// do about it; "" when it can. With open the node has to be one that this
// process may open, since a sandbox's agent can no more than it.
func DeviceProblem(open bool) (why, fix string) {
	const missing = "load the tun module (modprobe tun), or use allowlist"
	var st unix.Stat_t
	if err := unix.Stat(DeviceNode, &st); err != nil {
		return fmt.Sprintf("%s: %v", DeviceNode, err), missing
	}
	if st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != unix.Mkdev(deviceMajor, deviceMinor) {
		return DeviceNode + " is not the tun driver's node", missing
	}
	if !open {
		return "", ""
	}
	fd, err := unix.Open(DeviceNode, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		unix.Close(fd) //nolint:errcheck // nothing was done with it
		return "", ""
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Sprintf("%s: %v", DeviceNode, err), "let this user open it (chmod 0666 " + DeviceNode + ", as most systems have it), or use allowlist"
	default:
		return fmt.Sprintf("%s: %v", DeviceNode, err), missing
	}
}

// Devices makes a directory, mounted nowhere, with the node of Config.Full in
// it: a sandbox's uids may not open the host's own, and opening it for them
// would make a device of the host's network. It needs CAP_SYS_ADMIN and
// CAP_MKNOD. The caller closes the file, and with the last copy it is gone.
func Devices() (*os.File, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	defer unix.Close(fs) //nolint:errcheck // the mount lives on
	for k, v := range map[string]string{"size": "4096", "mode": "755"} {
		if err := unix.FsconfigSetString(fs, k, v); err != nil {
			return nil, fmt.Errorf("devices: %w", err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	f := os.NewFile(uintptr(fd), "devices")
	name := filepath.Base(DeviceNode)
	err = unix.Mknodat(fd, name, unix.S_IFCHR|0o600, int(unix.Mkdev(deviceMajor, deviceMinor)))
	if err == nil {
		err = unix.Fchmodat(fd, name, 0o666, 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("devices: %w", err), f.Close())
	}
	return f, nil
}
