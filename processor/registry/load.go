package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/twmb/franz-go/pkg/sr"

	"oncebus/dedup/formats"
)

// load reads and compiles a schema, from its file or from the registry.
func (r *Registry) load(ctx context.Context, of name) (*formats.Schema, error) {
	if of.file != "" {
		text, err := r.file(of.file)
		if err != nil {
			return nil, err
		}
		if of.format == formats.Avro {
			return formats.ParseAvro(text)
		}
		return formats.ParseProtobuf(text, r.file)
	}
	if r.client == nil {
		return nil, errors.New("ONCEBUS_SCHEMA_REGISTRY_URL is not set")
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	schema, err := r.ask(ctx, of.ref)
	if err != nil {
		return nil, err
	}
	if schema.Type != typeOf(of.format) {
		return nil, &invalidError{fmt.Sprintf("%s is one of %s, and the route reads %s", of.ref, schema.Type, of.format)}
	}
	t := referenced{client: r.client, seen: map[string]bool{}, byName: map[string]string{}}
	if err := t.follow(sr.WithParams(ctx, sr.ShowDeleted), schema.References); err != nil {
		return nil, err
	}
	if of.format == formats.Avro {
		return formats.ParseAvro(schema.Schema, t.texts...)
	}
	return formats.ParseProtobuf(schema.Schema, t.text)
}

// fileMax bounds a schema file, in bytes.
const fileMax = 16 << 20

// file returns the text of a schema file in Config.Dir. os.OpenRoot keeps a name from leading out of the
// directory.
func (r *Registry) file(name string) (string, error) {
	root, err := os.OpenRoot(cmp.Or(r.cfg.Dir, "."))
	if err != nil {
		return "", err
	}
	defer root.Close() //nolint:errcheck // it was only read
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(io.LimitReader(f, fileMax+1))
	if err == nil && len(text) > fileMax {
		err = fmt.Errorf("%s has more than %d bytes", name, fileMax)
	}
	return string(text), err
}

func (r *Registry) ask(ctx context.Context, ref formats.Reference) (sr.Schema, error) {
	if guid, ok := ref.GUID(); ok {
		found, err := r.client.SchemaByGUID(ctx, guid)
		return found.Schema, err
	}
	id, _ := ref.ID()
	return r.client.SchemaByID(ctx, int(id))
}

func typeOf(f formats.Format) sr.SchemaType {
	if f == formats.Avro {
		return sr.TypeAvro
	}
	return sr.TypeProtobuf
}

// referenced collects the schemas that a schema refers to, directly and through other schemas. A schema comes
// after the schemas that it refers to itself. As in Confluent's own clients, a name stands for the first schema
// that is found under it: two references may give one name to two versions of a schema.
type referenced struct {
	client *sr.Client
	seen   map[string]bool   // by name
	texts  []string          // each text once
	byName map[string]string // by the name in an import line
}

// referencesMax bounds how many schemas a schema may refer to, directly and through other schemas.
const referencesMax = 1000

// follow reads the schemas of references, and the schemas to which these refer.
func (t *referenced) follow(ctx context.Context, references []sr.SchemaReference) error {
	for _, ref := range references {
		if t.seen[ref.Name] {
			continue
		}
		if t.seen[ref.Name] = true; len(t.seen) > referencesMax {
			return fmt.Errorf("it refers to more than %d schemas", referencesMax)
		}
		found, err := t.client.SchemaByVersion(ctx, ref.Subject, ref.Version)
		if err != nil {
			return fmt.Errorf("its reference %s: %w", ref.Name, asFailure(err))
		}
		if err := t.follow(ctx, found.References); err != nil {
			return err
		}
		if !slices.Contains(t.texts, found.Schema.Schema) {
			t.texts = append(t.texts, found.Schema.Schema)
		}
		t.byName[ref.Name] = found.Schema.Schema
	}
	return nil
}

// asFailure removes the types of an error, so that isUnknown does not see a 404 for a reference. If the
// registry has a schema but not one of its references, that is a failure of the registry, and the record that
// names the schema is not invalid.
func asFailure(err error) error { return errors.New(err.Error()) }

// text returns the text of a file that a Protobuf schema imports.
func (t *referenced) text(name string) (string, error) {
	text, ok := t.byName[name]
	if !ok {
		return "", fmt.Errorf("the schema has no reference to %s in the registry", name)
	}
	return text, nil
}
