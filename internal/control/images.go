package control

import (
	"context"

	"dayfly.dev/dayfly"
	"dayfly.dev/dayfly/internal/failpoint"
)

// ImageImporter unpacks root file systems.
type ImageImporter interface {
	// Import unpacks r.Body and returns the image, ready to run from. CodeInvalid or CodeTooLarge names a bad entry; nothing
	// is left of a failed import.
	Import(ctx context.Context, r ImportImage) (dayfly.Image, error)
}

// ImportImage unpacks a root file system and names it; a name in use moves to the new image. Admins only.
func (p *Plane) ImportImage(ctx context.Context, who Principal, r ImportImage) (dayfly.Image, error) {
	if err := mustAdmin(who, true); err != nil {
		return dayfly.Image{}, err
	}
	if err := p.refuses(); err != nil {
		return dayfly.Image{}, err
	}
	return p.importImage(ctx, r)
}

// ImportBase imports an image without a principal: the base image at the first start.
func (p *Plane) ImportBase(ctx context.Context, r ImportImage) (dayfly.Image, error) {
	return p.importImage(ctx, r)
}

func (p *Plane) importImage(ctx context.Context, r ImportImage) (dayfly.Image, error) {
	im, err := p.images.Import(ctx, r)
	if err != nil {
		return im, err
	}
	failpoint.Hit("control.image.unpacked")
	replaced, err := p.store.PutImage(ctx, im)
	if err != nil {
		p.removeFiles(ctx, im.ID)
		return im, err
	}
	failpoint.Hit("control.image.recorded")
	if replaced != nil && replaced.ID != im.ID {
		p.retire(ctx, *replaced)
	}
	return im, nil
}

// retire removes an image that lost its name, unless machines still run from it: a later sweep tries again.
func (p *Plane) retire(ctx context.Context, im dayfly.Image) {
	failpoint.Hit("control.image.retiring")
	err := p.store.RemoveImage(ctx, im.ID)
	switch dayfly.ErrorCode(err) {
	case "":
		p.removeFiles(ctx, im.ID)
	case dayfly.CodeConflict, dayfly.CodeNotFound:
	default:
		p.log.Error("remove an image that lost its name", "image", im.ID, "error", err)
	}
}

// sweepImages retires every image without a name.
func (p *Plane) sweepImages(ctx context.Context) error {
	all, err := p.store.Images(ctx)
	if err != nil {
		return err
	}
	for _, im := range all {
		if im.Name == "" {
			p.retire(ctx, im)
		}
	}
	return nil
}

func (p *Plane) removeFiles(ctx context.Context, id string) {
	if err := p.images.Remove(context.WithoutCancel(ctx), id); err != nil {
		p.log.Error("remove image files", "image", id, "error", err)
	}
}

// Images lists the images.
func (p *Plane) Images(ctx context.Context, _ Principal) ([]dayfly.Image, error) {
	return p.store.Images(ctx)
}

// Image finds one by name or id.
func (p *Plane) Image(ctx context.Context, _ Principal, ref string) (dayfly.Image, error) {
	return p.store.Image(ctx, ref)
}

// RemoveImage removes an image that no live sandbox runs from. Admins only.
func (p *Plane) RemoveImage(ctx context.Context, who Principal, ref string) error {
	if err := mustAdmin(who, true); err != nil {
		return err
	}
	im, err := p.store.Image(ctx, ref)
	if err != nil {
		return err
	}
	if err := p.store.RemoveImage(ctx, im.ID); err != nil {
		return err
	}
	failpoint.Hit("control.image.removed")
	return p.images.Remove(context.WithoutCancel(ctx), im.ID)
}
