package dockerfile

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func validName(name string) bool { return nameForm.MatchString(name) }

// split splits at blanks outside of quotes. Quotes and backslashes stay, for
// expand.
func split(s string) ([]string, error) {
	var out []string
	var word strings.Builder
	var quote byte
	open := false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			word.WriteByte(c)
			i++
			word.WriteByte(s[i])
			open = true
		case quote != 0:
			word.WriteByte(c)
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote, open = c, true
			word.WriteByte(c)
		case c == ' ' || c == '\t':
			if open {
				out = append(out, word.String())
				word.Reset()
				open = false
			}
		default:
			word.WriteByte(c)
			open = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote is not closed")
	}
	if open {
		out = append(out, word.String())
	}
	if len(out) == 0 {
		return nil, errors.New("it says nothing")
	}
	return out, nil
}

// unquote takes one pair of quotes around all of s away.
func unquote(s string) string {
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// maxExpanded bounds what variables that hold each other can grow to.
const maxExpanded = 1 << 20

// expand takes quotes away and puts variables in, as a Dockerfile has them:
// $NAME, ${NAME}, ${NAME:-DEFAULT}, ${NAME:+ALTERNATIVE}.
func (p *parser) expand(s string) (string, error) {
	out, err := p.expandDepth(s, 0)
	if err == nil && len(out) > maxExpanded {
		err = errors.New("it gets too long")
	}
	return out, err
}

func (p *parser) expandDepth(s string, depth int) (string, error) {
	if depth > 10 {
		return "", errors.New("variables are nested too deeply")
	}
	var out strings.Builder
	var quote byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && quote != '\'' && i+1 < len(s):
			i++
			if quote == '"' && !strings.ContainsRune(`"$\`, rune(s[i])) {
				out.WriteByte('\\')
			}
			out.WriteByte(s[i])
		case (c == '"' || c == '\'') && (quote == 0 || quote == c):
			if quote == c {
				quote = 0
			} else {
				quote = c
			}
		case c == '$' && quote != '\'':
			value, n, err := p.variable(s[i+1:], depth)
			if err != nil {
				return "", err
			}
			if out.Len()+len(value) > maxExpanded {
				return "", errors.New("it gets too long")
			}
			out.WriteString(value)
			i += n
		default:
			out.WriteByte(c)
		}
	}
	return out.String(), nil
}

// variable is the value of what follows a dollar sign, and its length.
func (p *parser) variable(s string, depth int) (string, int, error) {
	if !strings.HasPrefix(s, "{") {
		n := 0
		for n < len(s) && validName(s[:n+1]) {
			n++
		}
		if n == 0 {
			return "$", 0, nil
		}
		return p.lookup(s[:n]), n, nil
	}
	end := matching(s)
	if end < 0 {
		return "", 0, errors.New("a brace is not closed")
	}
	body := s[1:end]
	name, word, op := body, "", ""
	if i := strings.IndexByte(body, ':'); i >= 0 {
		if i+1 >= len(body) {
			return "", 0, fmt.Errorf("${%s} is not supported", body)
		}
		name, op, word = body[:i], body[i:i+2], body[i+2:]
	}
	if !validName(name) {
		return "", 0, fmt.Errorf("${%s} is not supported", body)
	}
	v := p.lookup(name)
	switch {
	case op == "" || op == ":-" && v != "" || op == ":+" && v == "":
		return v, end + 1, nil
	case op == ":-" || op == ":+":
		w, err := p.expandDepth(word, depth+1)
		return w, end + 1, err
	default:
		return "", 0, fmt.Errorf("${%s} is not supported", body)
	}
}

// matching is where the brace that s begins with is closed, -1 for nowhere.
func matching(s string) int {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

func (p *parser) lookup(name string) string {
	if v, ok := p.file.Env[name]; ok {
		return v
	}
	return p.args[name]
}
