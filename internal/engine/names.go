package engine

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Names and IDs become parts of a path of the API. Security: nothing in them
// may lead to another path.
var (
	nameForm  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)
	imageForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.:/@-]{0,254}$`)
	idForm    = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// checkName accepts the name or ID of a container or network.
func checkName(op, field, name string) error {
	if !nameForm.MatchString(name) {
		return invalid(op, field, fmt.Errorf("%q is no name or ID", name))
	}
	return nil
}

// checkImage accepts the name or ID of an image.
func checkImage(op, name string) error {
	if !imageForm.MatchString(name) || strings.Contains(name, "..") || strings.Contains(name, "//") {
		return invalid(op, "image", fmt.Errorf("%q is no name of an image", name))
	}
	return nil
}

// checkLabels accepts labels that the daemon stores unchanged, also when they
// pass through its parser of build instructions.
func checkLabels(op string, labels map[string]string) error {
	for k, v := range labels {
		switch {
		case k == "" || strings.ContainsAny(k, "\"'\\$`= \t\r\n\x00"):
			return invalid(op, "labels", fmt.Errorf("the name %q cannot be a label's", k))
		case strings.ContainsAny(v, "\"'\\$`\r\n\x00"):
			return invalid(op, "labels", fmt.Errorf("the value of %q has a character that a label's cannot have", k))
		}
	}
	return nil
}

var errNoLabels = errors.New("labels must be given, since by them things are found again")
