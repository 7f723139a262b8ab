"""Physics as pure functions: vehicles, boxes, rays, voxels and maps."""
