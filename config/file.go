package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	kjson "github.com/knadh/koanf/parsers/json"
	ktoml "github.com/knadh/koanf/parsers/toml/v2"
	kyaml "github.com/knadh/koanf/parsers/yaml"
	"github.com/pelletier/go-toml/v2"
	"go.yaml.in/yaml/v3"
)

// maxFile bounds a configuration file.
const maxFile = 1 << 20

// extensions are the kinds of configuration files, in the order they are
// looked for.
func extensions() []string { return []string{".yaml", ".yml", ".toml", ".json"} }

// find is the one file dir/base.{yaml,yml,toml,json}, "" when there is none.
// Two are an error, since one of them would be ignored.
func find(dir, base string) (string, error) {
	var found []string
	for _, ext := range extensions() {
		path := filepath.Join(dir, base+ext)
		switch _, err := os.Lstat(path); {
		case err == nil:
			found = append(found, path)
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		default:
			return "", fmt.Errorf("config: %w", err)
		}
	}
	if len(found) > 1 {
		return "", fmt.Errorf("config: both %s are there; keep one of them", strings.Join(found, " and "))
	}
	if len(found) == 0 {
		return "", nil
	}
	return found[0], nil
}

// readFile reads a configuration file: a regular file of bounded size that not
// everybody may write.
func readFile(path string) ([]byte, error) {
	// Looked at before it is opened: opening a FIFO would wait for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("config: %s is not a regular file", path)
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o002 != 0 {
		return nil, fmt.Errorf("config: %s can be written by everybody; run: chmod o-w %s", path, path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	defer f.Close() //nolint:errcheck // read side
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("config: %s is larger than 1MiB", path)
	}
	return data, nil
}

// parse reads a file's text by its extension. lines maps keys, joined by
// separator, to their lines where the format tells.
func parse(path string, data []byte) (values map[string]any, lines map[string]int, err error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".yaml", ".yml":
		values, err = parseYAML(data)
		lines = yamlLines(data)
	case ".toml":
		values, err = ktoml.Parser().Unmarshal(data)
		if de := (*toml.DecodeError)(nil); errors.As(err, &de) {
			row, _ := de.Position()
			err = fmt.Errorf("line %d: %w", row, err)
		}
	case ".json":
		values, err = kjson.Parser().Unmarshal(data)
		if se := (*json.SyntaxError)(nil); errors.As(err, &se) {
			err = fmt.Errorf("line %d: %w", 1+bytes.Count(data[:min(int(se.Offset), len(data))], []byte("\n")), err)
		}
		lines = yamlLines(data) // JSON is YAML for this purpose
	default:
		err = fmt.Errorf("unknown kind of file; name it .yaml, .toml or .json")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("config: %s: %w", path, err)
	}
	return values, lines, nil
}

func parseYAML(data []byte) (map[string]any, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	if err := dec.Decode(&first); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("only one document is allowed in a file")
	}
	if len(first.Content) == 0 {
		return map[string]any{}, nil // nothing but comments
	}
	return kyaml.Parser().Unmarshal(data)
}

// yamlLines finds the line of every key; nothing when the text does not parse.
func yamlLines(data []byte) map[string]int {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return nil
	}
	lines := map[string]int{}
	var walk func(prefix string, n *yaml.Node, depth int)
	walk = func(prefix string, n *yaml.Node, depth int) {
		if n.Kind != yaml.MappingNode || depth > 20 {
			return
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := join(prefix, n.Content[i].Value)
			lines[key] = n.Content[i].Line
			walk(key, n.Content[i+1], depth+1)
		}
	}
	walk("", doc.Content[0], 0)
	return lines
}
